"""How blocks are called whole, on a padded rectangle of texts: masks, positions, linear modules.

`block_parts` takes them apart. Letters in shapes: N texts, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

# What the library hands over is not typed here.
Model: TypeAlias = Any
Config: TypeAlias = Any
Tokenizer: TypeAlias = Any
Position: TypeAlias = Any
MaskKind = Literal["bidirectional", "causal"]

FULL = "full_attention"
SLIDING = "sliding_attention"


@dataclass(frozen=True)
class Context:
    """What the blocks need beside their input.

    Attributes:
        masks: Attention mask by attention kind (only sliding-window models have two).
        position: Rotary angles, relative position bias, or None.
        paged: The masks for pages, kept from the first block that asked.
    """

    masks: Mapping[str, Tensor]
    position: Position
    paged: dict[str, Tensor] = field(default_factory=dict)


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear map that an adapter can sit on.

    Also transformers' Conv1D, told by its name: its module is not imported for a BERT.
    """
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear module keeps its weight as [d_in, d_out]."""
    return is_linear(module) and not isinstance(module, nn.Linear)


def tell_widths(model: nn.Module) -> None:
    """Conv1D modules get the names that linear modules have for their widths."""
    for module in model.modules():
        if is_transposed(module):
            given: Model = module
            given.in_features, given.out_features = given.nx, given.nf


def no_position(body: Model, hidden: Tensor) -> None:
    """Positions are part of the embeddings."""
    del body, hidden


def relative_bias(body: Model, hidden: Tensor) -> Tensor:
    """The bias of every pair of places [N, heads, T, T]."""
    bias: Tensor = body.encoder.compute_position_bias(hidden)
    return bias


def rotary(body: Model, hidden: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Place ids [1, T] and the angles of each."""
    ids = torch.arange(hidden.shape[1], device=hidden.device)[None]
    return ids, body.rotary_emb(hidden, position_ids=ids)


def plain_block(block: Model, hidden: Tensor, mask: Tensor, position: Position) -> Tensor:
    """A block that takes its input and the mask."""
    del position
    out: Tensor = block(hidden, mask)
    return out


def masked_block(block: Model, hidden: Tensor, mask: Tensor, position: Position) -> Tensor:
    """A block that takes the mask by its name."""
    del position
    out: Tensor = block(hidden, attention_mask=mask)
    return out


def biased_block(block: Model, hidden: Tensor, mask: Tensor, position: Position) -> Tensor:
    """A block that also takes a position bias."""
    out: Tensor = block(hidden, mask, position)[0]
    return out


def rotary_block(block: Model, hidden: Tensor, mask: Tensor, position: Position) -> Tensor:
    """A block that turns queries and keys by their places' angles."""
    ids, angles = position
    out: Tensor = block(hidden, attention_mask=mask, position_ids=ids, position_embeddings=angles)
    return out


def starting_block(block: Model, hidden: Tensor, mask: Tensor, position: Position) -> Tensor:
    """A block that carries a state from token to token, at the start of every text.

    Texts are padded on the right, and no token looks ahead: padding need not be known.
    """
    del mask, position
    out: Tensor = block(hidden)[0]
    return out


def attention_kinds(kind: MaskKind, config: Config) -> tuple[str, ...]:
    """The attention kind of each block."""
    depth: int = config.num_hidden_layers
    if kind == "bidirectional":
        return (FULL,) * depth
    if getattr(config, "layer_types", None):
        return tuple(config.layer_types)
    # Mistral has no list of kinds: one window size holds for all blocks.
    windowed = getattr(config, "sliding_window", None) is not None
    return (SLIDING if windowed else FULL,) * depth


def attention_mask(
    mask_kind: MaskKind, config: Config, kind: str, hidden: Tensor, mask: Tensor
) -> Tensor:
    """The mask that blocks of one attention kind take, from the padding mask [N, T].

    It is always spelled out, also where no row is padded: otherwise other code would run, and a
    row's result would depend on the padding of its neighbours.
    """
    if mask_kind == "bidirectional":
        seen = mask.bool()[:, None, None, :].expand(-1, 1, mask.shape[1], -1)
        eager = getattr(config, "_attn_implementation", None) == "eager"
        return added_mask(seen, hidden.dtype) if eager else seen
    # Here, and not above: an encoder can do without all that the library's models import.
    from transformers import masking_utils

    create = masking_utils.create_causal_mask
    if kind == SLIDING:
        create = masking_utils.create_sliding_window_causal_mask
    spelled: Tensor = create(
        config, hidden, attention_mask=mask, past_key_values=None, allow_is_causal_skip=False
    )
    return spelled


def added_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to scores."""
    if mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros_like(mask, dtype=dtype)
    return zeros.masked_fill(~mask, torch.finfo(dtype).min)
