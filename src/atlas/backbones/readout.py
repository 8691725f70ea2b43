"""The last block where only one place of each text is read.

A classification head reads the first token of an encoder, or the last of a causal model. Every
token still gives its key and value, but queries, output projection and feed-forward part are
needed at that one place: a sixth of the block's work.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.backbones.blocks import Model, Position
from atlas.backbones.parts import Parts, attention


def read_block(
    parts: Parts, block: Model, hidden: Tensor, mask: Tensor, position: Position, at: Tensor
) -> Tensor:
    """What a block puts out at place `at` [N] of each text, [N, 1, D].

    Args:
        parts: The block's family.
        block: The block.
        hidden: Its input [N, T, D].
        mask: What each place may see [N, 1, T, T].
        position: As the blocks of the family take it.
        at: One place of each text.
    """
    entered = parts.enter(block, hidden)
    projected = (
        parts.query(block, pick(entered, at)),
        parts.key(block, entered),
        parts.value(block, entered),
    )
    seen = attention(parts, block, projected, _pick_mask(mask, at), position, at[:, None])
    return parts.leave(block, seen, pick(hidden, at))


def pick(values: Tensor, at: Tensor) -> Tensor:
    """One place of each row: [N, T, D] -> [N, 1, D]."""
    return values[torch.arange(len(values), device=values.device), at][:, None]


def _pick_mask(mask: Tensor, at: Tensor) -> Tensor:
    """What one place of each text may see: [N, 1, T, T] -> [N, 1, 1, T]."""
    rows = torch.arange(len(at), device=at.device)
    return mask.expand(len(at), -1, -1, -1)[rows, :, at][:, :, None]
