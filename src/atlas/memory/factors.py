"""A table cut into chunks and sorted by use, for the walks of `exact` and `start`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas.memory.kernels.block import Ends, Rows
from atlas.memory.kernels.gate_products import Table


class Plan(NamedTuple):
    """Factors of one chunk of C tokens and W writes.

    Attributes:
        rows: What is left of M_0 and S_0 in every M_t, [b, C + 1] each.
        weights: What is left of each write in every M_t, [b, C + 1, W].
        writes: What writes add to M and S at the end, [b, W, 1] each.
        ends: What is left of M_0 and S_0 at the end.
        first_read: Which of the C + 1 the first token reads: 1 after its own write, 0 before.
    """

    rows: Rows
    weights: Tensor
    writes: Rows
    ends: Ends
    first_read: int

    def where_read(self, part: Tensor) -> Tensor:
        """Entries at which the C tokens read, of [b, C + 1, ...]."""
        return part[:, self.first_read : part.shape[1] - 1 + self.first_read]

    def where_read_back(self, part: Tensor) -> Tensor:
        """Put [b, C, ...] back among zeros: [b, C + 1, ...]."""
        sides = (self.first_read, 1 - self.first_read)
        return pad(part, (0, 0, *sides) if part.dim() == 3 else sides)


class Found(NamedTuple):
    """Gradients of one chunk: of its rows, then of its part of the table."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    m_from_m: Tensor
    m_from_s: Tensor
    m_from_writes: Tensor
    s_from_s: Tensor
    s_from_writes: Tensor


def plans(table: Table, first_read: int) -> list[Plan]:
    """One plan for each of the n chunks of a table [n, b, ...]."""
    rows = zip(table.m_from_m.unbind(), table.m_from_s.unbind(), strict=True)
    last = (table.m_from_writes[:, :, -1], table.s_from_writes)
    writes = zip(*(part[..., None].unbind() for part in last), strict=True)
    left = (table.m_from_m[..., -1], table.m_from_s[..., -1], table.s_from_s)
    ends = zip(*(part[..., None, None].unbind() for part in left), strict=True)
    return [
        Plan(Rows(*row), weights, Rows(*write), Ends(*end), first_read)
        for row, weights, write, end in zip(
            rows, table.m_from_writes.unbind(), writes, ends, strict=True
        )
    ]


def stack_chunks(chunks: Sequence[Tensor]) -> Tensor:
    """[n, b, ...] laid out as [b, n, ...], so that chunks join to sequences without a copy."""
    return torch.stack(list(chunks), 1).transpose(0, 1)
