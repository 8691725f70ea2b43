"""How gates spread writes over a chunk: the products of gates that every kernel needs.

With G_j = k_j^T e_j, unrolling S_t = carry_t S_{t-1} - step_t G_t and
M_t = keep_t M_{t-1} + added_t S_t over the C tokens of a chunk gives

    S_t = s_from_s[t] S_0                     - sum over j of s_from_writes[t, j] G_j
    M_t = m_from_m[t] M_0 + m_from_s[t] S_0   - sum over j of m_from_writes[t, j] G_j

for t = 0 .. C, where t = 0 is before the first token. With A[t, i] = keep_{i+1} ... keep_t and
D[t, j] = carry_{j+1} ... carry_t, the columns of s_from_writes are step_j D[:, j], those of
m_from_writes A diag(added) s_from_writes. Every factor is a product of gates at most one: nothing
overflows, and there are no logs that a gate of zero could spoil.

`chunk_factors` cuts the products into chunks and sorts them by use, for `exact` and `chunk_start`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from atlas.memory.kernels.block import Ends, Rows
from atlas.memory.rules.precision import in_given_precision


class GateProducts(NamedTuple):
    """The factors above for chunks of C tokens and W writes, under any leading dimensions.

    Attributes:
        m_from_m: [..., C + 1].
        m_from_s: [..., C + 1].
        m_from_writes: [..., C + 1, W]; row 0 is zero.
        s_from_s: At the chunk's end, [...].
        s_from_writes: At the chunk's end, [..., W].
    """

    m_from_m: Tensor
    m_from_s: Tensor
    m_from_writes: Tensor
    s_from_s: Tensor
    s_from_writes: Tensor


def gate_products(keep: Tensor, carry: Tensor, step: Tensor, added: Tensor) -> GateProducts:
    """The table of chunks whose factors are [..., C], one write per token."""
    return GateProducts(*cast(tuple[Tensor, ...], _Unroll.apply(keep, carry, step, added)))  # type: ignore[no-untyped-call]


def spread(gate: Tensor) -> tuple[Tensor, Tensor]:
    """Products of a gate [..., C]: between two tokens [..., C, C], and from the start [..., C].

    Entry [t, i] is gate_{i+1} ... gate_t, zero for i > t. Row after row is faster than exp of
    differences of summed logs, and loses nothing where such sums are long.
    """
    size = gate.shape[-1]
    products = gate.new_zeros(size, *gate.shape)
    products.diagonal(dim1=0, dim2=-1).fill_(1.0)
    rows, gates = products.unbind(), gate[..., None].movedim(-2, 0).contiguous().unbind()
    for t in range(1, size):
        torch.mul(rows[t - 1][..., :t], gates[t], out=rows[t][..., :t])
    between = products.movedim(0, -2)
    return between, between[..., 0] * gate[..., :1]


class _Unroll(Function):
    """The table with its gradient by the recurrence itself.

    Row t of m_from_writes is keep_t times row t - 1 plus added_t times row t of s_from_writes, so
    what reaches row t is H = A^T d(m_from_writes), and d keep_t = <H[t], row t - 1>: two products
    of the size of the table, and no division by gates that may be zero.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        keep: Tensor,
        carry: Tensor,
        step: Tensor,
        added: Tensor,
    ) -> tuple[Tensor, ...]:
        a, beta = spread(keep)
        d, mu = spread(carry)
        size = keep.shape[-1]
        writes = keep.new_zeros(*keep.shape[:-1], size + 1, size)
        s_writes = d * step[..., None, :]
        writes[..., 1:, :] = a @ (added[..., None] * s_writes)
        m_from_m = torch.nn.functional.pad(beta, (1, 0), value=1.0)
        m_from_s = torch.nn.functional.pad((a @ (added * mu)[..., None])[..., 0], (1, 0))
        ctx.save_for_backward(a, d, step, added, writes, m_from_m, m_from_s, mu)
        return m_from_m, m_from_s, writes, mu[..., -1].clone(), s_writes[..., -1, :].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        with in_given_precision(grads[0]):
            return _unroll_back(ctx.saved_tensors, grads)


def _unroll_back(saved: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[Tensor, ...]:
    a, d, step, added, writes, m_from_m, m_from_s, mu = saved
    d_m, d_s, d_writes, d_mu_end, d_s_writes = grads
    s_writes = d * step[..., None, :]
    h = a.mT @ d_writes[..., 1:, :]
    h_s, h_m = (a.mT @ torch.stack([d_s, d_m], -1)[..., 1:, :]).unbind(-1)
    d_keep = _row_dots(h, writes[..., :-1, :]) + h_s * m_from_s[..., :-1]
    d_keep += h_m * m_from_m[..., :-1]
    d_added = _row_dots(h, s_writes) + h_s * mu
    h *= added[..., None]
    h[..., -1, :] += d_s_writes
    h_s = h_s * added
    h_s[..., -1] += d_mu_end
    j = d.mT @ h
    j_s = (d.mT @ h_s[..., None])[..., 0]
    d_carry = j_s * torch.nn.functional.pad(mu[..., :-1], (1, 0), value=1.0)
    d_carry[..., 1:] += _row_dots(j[..., 1:, :], s_writes[..., :-1, :])
    return d_keep, d_carry, j.diagonal(dim1=-2, dim2=-1), d_added


def _row_dots(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1)


class ChunkFactors(NamedTuple):
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


class ChunkGradients(NamedTuple):
    """Gradients of one chunk: of its rows, then of its part of the table."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    m_from_m: Tensor
    m_from_s: Tensor
    m_from_writes: Tensor
    s_from_s: Tensor
    s_from_writes: Tensor


def chunk_factors(table: GateProducts, first_read: int) -> list[ChunkFactors]:
    """One plan for each of the n chunks of a table [n, b, ...]."""
    rows = zip(table.m_from_m.unbind(), table.m_from_s.unbind(), strict=True)
    last = (table.m_from_writes[:, :, -1], table.s_from_writes)
    writes = zip(*(part[..., None].unbind() for part in last), strict=True)
    left = (table.m_from_m[..., -1], table.m_from_s[..., -1], table.s_from_s)
    ends = zip(*(part[..., None, None].unbind() for part in left), strict=True)
    return [
        ChunkFactors(Rows(*row), weights, Rows(*write), Ends(*end), first_read)
        for row, weights, write, end in zip(
            rows, table.m_from_writes.unbind(), writes, ends, strict=True
        )
    ]


def stack_chunks(chunks: Sequence[Tensor]) -> Tensor:
    """[n, b, ...] laid out as [b, n, ...], so that chunks join to sequences without a copy."""
    return torch.stack(list(chunks), 1).transpose(0, 1)
