"""The Omega window: at each token the errors of the last c tokens count.

Keys and values are given with the c - 1 rows before them. In the exact rule every token makes c
writes, one for each token of its window, all measured at the same memory. Where errors are
measured at the chunk's start, a token's error is the same in every window it is in, so writes are
added up per token: its factor is the sum, over the windows, of weight times factor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.memory.kernels.gate_products import GateProducts


def every_window(rows: Tensor, window: int) -> Tensor:
    """All windows, one after the other: [..., c - 1 + T, d] -> [..., T * c, d]."""
    return rows.unfold(-2, window, 1).mT.flatten(-3, -2)


def blocks_with_past(rows: Tensor, block: int, window: int) -> Tensor:
    """Blocks with the c - 1 rows before: [..., c - 1 + n C, d] -> [..., n, C + c - 1, d]."""
    return rows.unfold(-2, block + window - 1, block).mT


def band(gamma: Tensor) -> Tensor:
    """Weights [..., C, c] as the matrix [..., C, C + c - 1] that has row t's from column t on."""
    size, window = gamma.shape[-2:]
    # Rows of one entry more than the matrix has: read with its own width, row t moves t places.
    padded = torch.nn.functional.pad(gamma, (0, size)).flatten(-2)
    width = size + window - 1
    return torch.unflatten(padded[..., : size * width], -1, (size, width))


def per_window_entry(table: GateProducts, gamma: Tensor) -> GateProducts:
    """The table of C tokens with c writes each; gamma [..., C, c]."""
    writes = table.m_from_writes[..., None] * gamma[..., None, :, :]
    ends = table.s_from_writes[..., None] * gamma
    return table._replace(m_from_writes=writes.flatten(-2), s_from_writes=ends.flatten(-2))


def per_row_with_past(table: GateProducts, gamma: Tensor) -> GateProducts:
    """The table of C tokens whose writes are summed over the C + c - 1 rows of `band`."""
    weights = band(gamma)
    ends = table.s_from_writes[..., None, :] @ weights
    return table._replace(
        m_from_writes=table.m_from_writes @ weights, s_from_writes=ends[..., 0, :]
    )
