"""BERT's body in modules of our own: what a run on an encoder needs, and nothing else.

Importing transformers' models brings a compiler, generation and the losses of all kinds of tasks
along, 105 MB and two seconds that no such run has any use for. Modules have the names they have
there, so checkpoints, adapters and exports are the same; `tests/backbones/test_bert.py` holds one
against the other, bit for bit. Letters in shapes: N texts, T tokens, D width, E width of a head.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from atlas.backbones.blocks import Config

WEIGHTS = "model.safetensors"
INSIDE = "bert."
"""How names begin in checkpoints of models with a head."""


class Linear(nn.Linear):
    """A projection whose weights are read, not drawn."""

    def reset_parameters(self) -> None:
        """Leave them as they are; memory that nobody writes to is not taken."""


class Embedding(nn.Embedding):
    """A table whose rows are read, not drawn."""

    def reset_parameters(self) -> None:
        """Leave them as they are."""


class Embeddings(nn.Module):
    """Tokens, segments and places, added up."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, places = config.hidden_size, config.max_position_embeddings
        self.word_embeddings = Embedding(config.vocab_size, width)
        self.position_embeddings = Embedding(places, width)
        self.token_type_embeddings = Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        ids = torch.arange(places)[None]
        self.register_buffer("position_ids", ids, persistent=False)
        self.register_buffer("token_type_ids", torch.zeros_like(ids), persistent=False)

    def forward(self, ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """The input of the first block [N, T, D]."""
        places = self.get_buffer("position_ids")[:, : ids.shape[1]]
        hidden = self.word_embeddings(ids) + self.token_type_embeddings(token_type_ids)
        found: Tensor = self.LayerNorm(hidden + self.position_embeddings(places))
        return found


class Projections(nn.Module):
    """Queries, keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.hidden_size
        self.attention_head_size = width // config.num_attention_heads
        self.query, self.key, self.value = (Linear(width, width) for _ in range(3))

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """What each token sees of the others [N, T, D]."""
        size = self.attention_head_size
        query, key, value = (
            torch.unflatten(one(hidden), -1, (-1, size)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=size**-0.5
        )
        return seen.transpose(1, 2).flatten(2)


class Added(nn.Module):
    """A projection added to what went around it."""

    def __init__(self, given: int, config: Config) -> None:
        super().__init__()
        self.dense = Linear(given, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, around: Tensor) -> Tensor:
        """The normed sum [..., D]."""
        found: Tensor = self.LayerNorm(self.dense(hidden) + around)
        return found


class Attention(nn.Module):
    """The first half of a block."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self = Projections(config)
        self.output = Added(config.hidden_size, config)


class Widened(nn.Module):
    """The inner layer of the second half."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """What the outer layer reads."""
        return functional.gelu(self.dense(hidden))


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Widened(config)
        self.output = Added(config.intermediate_size, config)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Texts [N, T, D] under a mask of what each place may see [N, 1, T, T]."""
        attended = self.attention.output(self.attention.self(hidden, mask), hidden)
        found: Tensor = self.output(self.intermediate(attended), attended)
        return found


class Blocks(nn.Module):
    """All blocks, where checkpoints have them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))


class Pooler(nn.Module):
    """What a classification head reads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """From the first token of each text [N, T, D] to features [N, D]."""
        return torch.tanh(self.dense(hidden[:, 0]))


class Bert(nn.Module):
    """Embeddings, blocks and pooler."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = Blocks(config)
        self.pooler: Pooler | None = Pooler(config)

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return self.embeddings.LayerNorm.weight.dtype

    def save_pretrained(self, folder: Path) -> None:
        """Write config and weights as transformers would."""
        folder.mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder)
        save_file(self.state_dict(), folder / WEIGHTS, metadata={"format": "pt"})


def is_plain(config: Config) -> bool:
    """Whether these modules are all that a BERT of that config has."""
    return (
        config.model_type == "bert"
        and config.hidden_act == "gelu"
        and config.hidden_size % config.num_attention_heads == 0
        and not getattr(config, "is_decoder", False)
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
    )


def read_bert(folder: Path, config: Config, dtype: torch.dtype) -> tuple[Bert, bool] | None:
    """The BERT of a folder, and whether its pooler came with it.

    Weights stay mapped from the file, unless `dtype` is another one than theirs.

    Returns:
        None if the folder holds its weights in some other way; transformers knows them all.
    """
    if not is_plain(config) or not (folder / WEIGHTS).is_file():
        return None
    model = Bert(config)
    wanted = model.state_dict()
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        there = {name.removeprefix(INSIDE): name for name in file.keys()}  # noqa: SIM118
        weights = {name: file.get_tensor(there[name]).to(dtype) for name in wanted if name in there}
    pooled = all(name in weights for name in wanted if name.startswith("pooler."))
    if not pooled:
        model.pooler = None
    missing, _ = model.load_state_dict(weights, strict=False, assign=True)
    return None if missing else (model, pooled)
