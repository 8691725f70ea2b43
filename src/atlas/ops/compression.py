"""Vectors in fewer bytes: rounded to eight bits, or cut to their largest entries."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
"""Entries that share a scale."""
STEPS = 127
"""Of the largest entry of a block, in both directions."""


def block_count(entries: int) -> int:
    """Scales of a vector of so many entries."""
    return -(-entries // BLOCK)


def to_int8(values: Tensor) -> tuple[Tensor, Tensor]:
    """Round every entry to a multiple of a 127th of the largest in its block.

    Args:
        values: A vector [n].

    Returns:
        int8 multiples [n] and float32 scales [blocks]; the error of an entry is at most half its
        scale.
    """
    blocks = _in_blocks(values)
    scales = (blocks.abs().amax(1) / STEPS).to(torch.float32)
    steps = scales.to(values.dtype)[:, None]
    codes = (blocks / torch.where(steps > 0, steps, 1)).round().clamp(-STEPS, STEPS)
    return codes.to(torch.int8).flatten()[: len(values)], scales


def from_int8(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The vector that multiples and scales stand for."""
    blocks = _in_blocks(codes).to(dtype) * scales.to(dtype)[:, None]
    return blocks.flatten()[: len(codes)]


def largest_places(values: Tensor, count: int) -> Tensor:
    """Where the entries of largest size are, in their order, ties to the first; int32 [count]."""
    order = torch.argsort(values.abs(), descending=True, stable=True)
    return order[:count].sort().values.to(torch.int32)


def _in_blocks(values: Tensor) -> Tensor:
    padding = block_count(len(values)) * BLOCK - len(values)
    return torch.nn.functional.pad(values, (0, padding)).reshape(-1, BLOCK)
