"""What differs between model families, as one table.

A family says where the parts of a model sit and how one of its blocks is called; everything else
in this folder is written once for all families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from atlas.backbones.block_parts import BERT, DISTILBERT, GPT2, LLAMA, MPNET, BlockParts
from atlas.backbones.blocks import (
    Config,
    MaskKind,
    Model,
    Position,
    biased_block,
    masked_block,
    no_position,
    plain_block,
    relative_bias,
    rotary,
    rotary_block,
    starting_block,
)
from atlas.errors import InputError
from atlas.federation.batching.backbone import Activation, HeadLayer


@dataclass(frozen=True)
class Family:
    """How one family of models is cut into embeddings, blocks and head.

    Attributes:
        name: Family name.
        model_types: The `model_type` values of config.json that belong to it.
        prefix: Name of the body inside the models with a head.
        embeddings: Path of the embedding module inside the body.
        blocks: Path of the list of blocks inside the body.
        mask: Whether tokens see the whole text or only what is before them.
        modules: Short name of a linear module to its path inside a block.
        head: Layers of the classification head: name, activation of its output.
        head_bias: Whether the head layers have biases.
        pooler: Path of a pooler that the classification model reads, or empty.
        segments: Whether the embeddings take segment ids.
        places: Path of a table of positions that is added to the embeddings, or empty.
        norm: Path of the norm above the last block of a causal model.
        reserved: Positions of the position table that no token can take.
        position: Computes what blocks need to know of positions.
        run: Calls one block.
        projections: Short names of the modules that give queries, keys and values; one name if one
            module gives all three, side by side.
        parts: The pieces of one block; None where it can only be run on whole texts.
        scores: Tables of attention over all pairs of tokens that a head keeps for training.
    """

    name: str
    model_types: tuple[str, ...]
    prefix: str
    embeddings: str
    blocks: str
    mask: MaskKind
    modules: Mapping[str, str]
    head: tuple[tuple[str, Activation], ...]
    head_bias: bool = True
    pooler: str = ""
    segments: bool = False
    places: str = ""
    norm: str = "norm"
    reserved: int | Callable[[Config], int] = 0
    position: Callable[[Model, Tensor], Position] = no_position
    run: Callable[[Model, Tensor, Tensor, Position], Tensor] = plain_block
    projections: tuple[str, ...] = ("query", "key", "value")
    parts: BlockParts | None = BERT
    scores: int = 0

    def max_positions(self, config: Config) -> int:
        """The longest text that a model of that config takes."""
        reserved = self.reserved(config) if callable(self.reserved) else self.reserved
        return int(config.max_position_embeddings) - reserved

    def head_layers(self, width: int, *, pooled: bool) -> tuple[HeadLayer, ...]:
        """The trained head; a pooler that no checkpoint has trained is its first layer."""
        layers = self.head
        if not layers:
            return ()
        if self.pooler and not pooled:
            layers = ((f"{self.prefix}.{self.pooler}.dense", "tanh"), *layers)
        outs = [width] * (len(layers) - 1) + [0]
        return tuple(
            HeadLayer(name, d_in=width, d_out=out, bias=self.head_bias, activation=activation)
            for (name, activation), out in zip(layers, outs, strict=True)
        )


ATLAS = "atlas_omega"
"""The `model_type` of our own language model; `omega` itself imports transformers' models."""
_BERT_MLP = {"up": "intermediate.dense", "down": "output.dense"}
_BERT_ATTENTION = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
}

FAMILIES = (
    Family(
        name="bert",
        model_types=("bert",),
        prefix="bert",
        embeddings="embeddings",
        blocks="encoder.layer",
        mask="bidirectional",
        modules=_BERT_ATTENTION | _BERT_MLP,
        head=(("classifier", "identity"),),
        pooler="pooler",
        segments=True,
    ),
    Family(
        name="roberta",
        model_types=("roberta", "xlm-roberta", "camembert"),
        prefix="roberta",
        embeddings="embeddings",
        blocks="encoder.layer",
        mask="bidirectional",
        modules=_BERT_ATTENTION | _BERT_MLP,
        # Its tokenizers give no segments, and most checkpoints know a single one.
        head=(("classifier.dense", "tanh"), ("classifier.out_proj", "identity")),
        # Tokens are numbered from the one after padding on.
        reserved=lambda config: config.pad_token_id + 1,
    ),
    Family(
        name="distilbert",
        model_types=("distilbert",),
        prefix="distilbert",
        embeddings="embeddings",
        blocks="transformer.layer",
        mask="bidirectional",
        modules={
            "query": "attention.q_lin",
            "key": "attention.k_lin",
            "value": "attention.v_lin",
            "output": "attention.out_lin",
            "up": "ffn.lin1",
            "down": "ffn.lin2",
        },
        head=(("pre_classifier", "relu"), ("classifier", "identity")),
        parts=DISTILBERT,
    ),
    Family(
        name="mpnet",
        model_types=("mpnet",),
        prefix="mpnet",
        embeddings="embeddings",
        blocks="encoder.layer",
        mask="bidirectional",
        modules={
            "query": "attention.attn.q",
            "key": "attention.attn.k",
            "value": "attention.attn.v",
            "output": "attention.attn.o",
            **_BERT_MLP,
        },
        head=(("classifier.dense", "tanh"), ("classifier.out_proj", "identity")),
        # MPNet numbers its tokens from 2 on.
        reserved=2,
        position=relative_bias,
        run=biased_block,
        parts=MPNET,
        scores=1,
    ),
    Family(
        name="llama",
        model_types=("llama", "mistral", "qwen2", "qwen3", "gemma"),
        prefix="model",
        embeddings="embed_tokens",
        blocks="layers",
        mask="causal",
        modules={
            "query": "self_attn.q_proj",
            "key": "self_attn.k_proj",
            "value": "self_attn.v_proj",
            "output": "self_attn.o_proj",
            "up": "mlp.up_proj",
            "down": "mlp.down_proj",
            "gate": "mlp.gate_proj",
        },
        head=(("score", "identity"),),
        head_bias=False,
        position=rotary,
        run=rotary_block,
        parts=LLAMA,
    ),
    Family(
        name="gpt2",
        model_types=("gpt2",),
        prefix="transformer",
        embeddings="wte",
        blocks="h",
        mask="causal",
        # One module makes queries, keys and values; an adapter on any is one on it.
        modules={
            **dict.fromkeys(("query", "key", "value"), "attn.c_attn"),
            "output": "attn.c_proj",
            "up": "mlp.c_fc",
            "down": "mlp.c_proj",
        },
        head=(("score", "identity"),),
        head_bias=False,
        places="wpe",
        norm="ln_f",
        run=masked_block,
        projections=("query",),
        parts=GPT2,
    ),
    Family(
        name="atlas",
        model_types=(ATLAS,),
        prefix="model",
        embeddings="embed_tokens",
        blocks="layers",
        mask="causal",
        modules={
            "query": "mixer.attention.q_proj",
            "key": "mixer.attention.k_proj",
            "value": "mixer.attention.v_proj",
            "output": "mixer.o_proj",
            "memory_query": "mixer.memory.q_proj",
            "memory_key": "mixer.memory.k_proj",
            "memory_value": "mixer.memory.v_proj",
            "share": "mixer.share_proj",
            "up": "mlp.up_proj",
            "down": "mlp.down_proj",
            "gate": "mlp.gate_proj",
        },
        head=(("score", "identity"),),
        head_bias=False,
        run=starting_block,
        parts=None,
    ),
)


def find_family(model_type: str) -> Family | None:
    """The family of a config.json's `model_type`; None if no row describes it."""
    return next((family for family in FAMILIES if model_type in family.model_types), None)


def need_family(model_type: str) -> Family:
    """As `find_family`, refusing what no row describes."""
    family = find_family(model_type)
    if family is None:
        known = ", ".join(sorted(t for family in FAMILIES for t in family.model_types))
        raise InputError(f"model_type {model_type!r} is not in the table of families: {known}")
    return family
