"""Blocks taken apart: what attention reads and gives, and what comes of it, family by family.

The pieces are transformers' own modules (so that adapters on them are felt) in the order in which
it calls them. Letters in shapes: N texts, T tokens, D width, H heads, E width of a head; dots stand
for any layout of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from atlas.backbones.blocks import Model, Position, added_mask

QueriesAndKeys = tuple[Tensor, Tensor]
"""Queries [N, H, Q, E] and keys [N, H, T, E]; Q is T, or 1 where one place is asked."""


@dataclass(frozen=True)
class BlockParts:
    """One family's block, beside the projections that its table of modules names.

    Attributes:
        enter: What the projections read, from the block's input [..., D].
        leave: The block's output from what attention gave [..., D] and the block's input.
        width: Of a head.
        turn: What positions do to queries and keys; given the places that are asked [N, Q].
        bias: What positions add to attention scores [N, H, Q, T]; None if nothing.
        page: The positions of pages, whose places are these of their texts [M, P].
        scale: What scores are multiplied with; None for one over the root of a head's width.
    """

    enter: Callable[[Model, Tensor], Tensor]
    leave: Callable[[Model, Tensor, Tensor], Tensor]
    width: Callable[[Model], int]
    turn: Callable[[Model, QueriesAndKeys, Position, Tensor], QueriesAndKeys]
    bias: Callable[[Position, Tensor], Tensor | None]
    page: Callable[[Position, Tensor], Position]
    scale: Callable[[Model], float] | None = None


def as_it_is(block: Model, hidden: Tensor) -> Tensor:
    """Projections that read the block's input."""
    del block
    return hidden


def stay(block: Model, heads: QueriesAndKeys, position: Position, places: Tensor) -> QueriesAndKeys:
    """Positions that do nothing to queries and keys."""
    del block, position, places
    return heads


def no_bias(position: Position, places: Tensor) -> None:
    """Positions that add nothing to scores."""
    del position, places


def relative(position: Position, places: Tensor) -> Tensor:
    """The rows of a relative position bias [N, H, T, T] that are asked."""
    table: Tensor = position
    wide = table.expand(len(places), -1, -1, -1)
    index = places[:, None, :, None].expand(-1, wide.shape[1], -1, wide.shape[3])
    return wide.gather(2, index)


def anywhere(position: Position, within: Tensor) -> Position:
    """Positions that are part of the embeddings."""
    del within
    return position


def relative_page(position: Position, within: Tensor) -> Position:
    """The bias of every pair of places of a page [M, H, P, P]; between texts it does not matter."""
    table: Tensor = position[0]
    return table[:, within[:, :, None], within[:, None, :]].transpose(0, 1)


def rotary_page(position: Position, within: Tensor) -> Position:
    """The angles of every place of a page [M, P, E]."""
    _, (cos, sin) = position
    return within, (cos[0][within], sin[0][within])


def rotate(
    block: Model, heads: QueriesAndKeys, position: Position, places: Tensor
) -> QueriesAndKeys:
    """Queries and keys turned by the angles of their places, after norms where there are any."""
    _, (cos, sin) = position
    query, key = heads
    own = block.self_attn
    if hasattr(own, "q_norm"):
        query, key = own.q_norm(query), own.k_norm(key)
    rows = torch.arange(len(places), device=places.device)[:, None]
    asked = [angles.expand(len(places), -1, -1)[rows, places] for angles in (cos, sin)]
    return _turned(query, *asked), _turned(key, cos, sin)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


def attention(
    parts: BlockParts,
    block: Model,
    projected: tuple[Tensor, Tensor, Tensor],
    mask: Tensor,
    position: Position,
    places: Tensor,
) -> Tensor:
    """What attention gives at the places asked, [N, Q, D].

    Args:
        parts: The block's family.
        block: The block.
        projected: Queries [N, Q, .], keys and values [N, T, .].
        mask: What each place may see: bool or added to scores [N, 1, Q, T].
        position: As the blocks of the family take it.
        places: Which places are asked [N, Q].
    """
    width = parts.width(block)
    query, key, value = (_heads(part, width) for part in projected)
    query, key = parts.turn(block, (query, key), position, places)
    bias = parts.bias(position, places)
    if bias is not None:
        mask = added_mask(mask, query.dtype) + bias
    seen = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        scale=width**-0.5 if parts.scale is None else parts.scale(block),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return seen.transpose(1, 2).flatten(2)


def _heads(values: Tensor, width: int) -> Tensor:
    return values.reshape(*values.shape[:2], -1, width).transpose(1, 2)


def _leave_bert(block: Model, seen: Tensor, hidden: Tensor) -> Tensor:
    attended = block.attention.output(seen, hidden)
    out: Tensor = block.output(block.intermediate(attended), attended)
    return out


def _leave_distilbert(block: Model, seen: Tensor, hidden: Tensor) -> Tensor:
    attended = block.sa_layer_norm(block.attention.out_lin(seen) + hidden)
    # Straight through its layers: its own forward cuts the second dimension into chunks.
    out: Tensor = block.output_layer_norm(block.ffn.ff_chunk(attended) + attended)
    return out


def _leave_mpnet(block: Model, seen: Tensor, hidden: Tensor) -> Tensor:
    attended = block.attention.LayerNorm(block.attention.attn.o(seen) + hidden)
    out: Tensor = block.output(block.intermediate(attended), attended)
    return out


def _leave_llama(block: Model, seen: Tensor, hidden: Tensor) -> Tensor:
    attended = hidden + block.self_attn.o_proj(seen)
    out: Tensor = attended + block.mlp(block.post_attention_layernorm(attended))
    return out


def _leave_gpt2(block: Model, seen: Tensor, hidden: Tensor) -> Tensor:
    attended = hidden + block.attn.c_proj(seen)
    out: Tensor = attended + block.mlp(block.ln_2(attended))
    return out


BERT = BlockParts(
    enter=as_it_is,
    leave=_leave_bert,
    width=lambda block: block.attention.self.attention_head_size,
    turn=stay,
    bias=no_bias,
    page=anywhere,
)
DISTILBERT = BlockParts(
    enter=as_it_is,
    leave=_leave_distilbert,
    width=lambda block: block.attention.attention_head_size,
    turn=stay,
    bias=no_bias,
    page=anywhere,
)
MPNET = BlockParts(
    enter=as_it_is,
    leave=_leave_mpnet,
    width=lambda block: block.attention.attn.attention_head_size,
    turn=stay,
    bias=relative,
    page=relative_page,
)
LLAMA = BlockParts(
    enter=lambda block, hidden: block.input_layernorm(hidden),
    leave=_leave_llama,
    width=lambda block: block.self_attn.head_dim,
    turn=rotate,
    bias=no_bias,
    page=rotary_page,
)
GPT2 = BlockParts(
    enter=lambda block, hidden: block.ln_1(hidden),
    leave=_leave_gpt2,
    width=lambda block: block.attn.head_dim,
    turn=stay,
    bias=no_bias,
    page=anywhere,
    scale=lambda block: block.attn.scaling,
)
