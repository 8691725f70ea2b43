"""Blocks on packed tokens: everything but attention runs without padding."""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.backbones.blocks import Model, Position
from atlas.backbones.parts import Parts, attention
from atlas.federation.packing import Packing


def packed_block(
    parts: Parts, block: Model, hidden: Tensor, mask: Tensor, position: Position, packing: Packing
) -> Tensor:
    """A block applied to packed tokens [n, S, D].

    Args:
        parts: The block's family.
        block: The block.
        hidden: Its input.
        mask: What each place of each text may see [N, 1, T, T].
        position: As the blocks of the family take it.
        packing: Where texts are.
    """
    entered = parts.enter(block, hidden)
    projected = (
        packing.spread(parts.query(block, entered)),
        packing.spread(parts.key(block, entered)),
        packing.spread(parts.value(block, entered)),
    )
    places = torch.arange(packing.slots.shape[1], device=hidden.device)
    asked = places.expand(len(packing.slots), -1)
    seen = attention(parts, block, projected, mask, position, asked)
    return parts.leave(block, packing.gather(seen), hidden)


def read_block(  # noqa: PLR0913
    parts: Parts,
    block: Model,
    hidden: Tensor,
    mask: Tensor,
    position: Position,
    packing: Packing,
    at: Tensor,
) -> Tensor:
    """What a block puts out at place `at` [N] of each text, [N, 1, D].

    A classification head reads the first token of an encoder, or the last of a causal model. Every
    token still gives its key and value, but queries, output projection and feed-forward part are
    needed at that one place: a sixth of the block's work.
    """
    rows = torch.arange(len(at), device=at.device)
    read = packing.slots[rows, at]
    entered = parts.enter(block, hidden)
    projected = (
        parts.query(block, entered.flatten(0, 1)[read][:, None]),
        packing.spread(parts.key(block, entered)),
        packing.spread(parts.value(block, entered)),
    )
    allowed = mask.expand(len(at), -1, -1, -1)[rows, :, at][:, :, None]
    seen = attention(parts, block, projected, allowed, position, at[:, None])
    return parts.leave(block, seen, hidden.flatten(0, 1)[read][:, None])
