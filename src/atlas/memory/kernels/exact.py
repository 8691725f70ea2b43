"""The exact chunked rule: all errors of a chunk at once, by one triangular inverse.

The error of write u of token t, k_u M_{t-1} - v_u, depends on earlier writes through M_{t-1}.
With the factors of `table`, whose row t - 1 says what M_{t-1} owes to M_0, S_0 and each write,

    (I + L) E = m_from_m K M_0 + m_from_s K S_0 - V,   L[u, w] = m_from_writes[t - 1, w] k_u . k_w

and L is strictly lower triangular, so (I + L)^-1 exists; keys and gates alone make it. Then

    O = m_from_m Q M_0 + m_from_s Q S_0 - (m_from_writes * Q K^T) E

and the state moves on by K^T E. Keys and queries both read the state, so they are stacked as
readers. The gradient needs one product where that of an inverse needs three:
dL = -dR E^T, where dR = (I + L)^-T dE is what reaches the right-hand side.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from atlas.memory.kernels.block import (
    Rows,
    combine,
    leave,
    leave_back,
    row_dots,
    side_by_side,
)
from atlas.memory.kernels.gate_products import (
    ChunkFactors,
    ChunkGradients,
    GateProducts,
    chunk_factors,
    stack_chunks,
)
from atlas.memory.rules.precision import in_given_precision


class _Chunk(NamedTuple):
    """What the gradient of a chunk needs; its R readers are its W keys, then its C queries.

    Attributes:
        x: [M_0 | S_0], [b, d_k, 2 d_v].
        readers: [b, R, d_k].
        grams: Readers times keys, [b, R, W].
        weighted: The same times what each write counts for the reader.
        inverse: (I + L)^-1, [b, W, W].
        read: Readers times x.
        error: E [b, W, d_v].
    """

    x: Tensor
    readers: Tensor
    grams: Tensor
    weighted: Tensor
    inverse: Tensor
    read: Tensor
    error: Tensor


def exact_scan(
    rows: tuple[Tensor, Tensor, Tensor], table: GateProducts, x: Tensor, first_read: int
) -> tuple[Tensor, Tensor]:
    """Walk n chunks.

    Args:
        rows: Queries [n, b, C, d_k], keys [n, b, W, d_k] and values [n, b, W, d_v]; W is C times
            the writes of each token, those of one token side by side.
        table: Of [n, b, ...].
        x: M and S side by side, [b, d_k, 2 d_v].
        first_read: The row of the table at which the first token reads: 1 after its own write,
            0 before it.

    Returns:
        Outputs [n, b, C, d_v] and the state after the last chunk.
    """
    result = _ExactScan.apply(first_read, x, *rows, *table)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], result)


class _ExactScan(Function):
    @staticmethod
    def forward(ctx: Any, first: int, x: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        rows, table = parts[:3], GateProducts(*parts[3:])
        outputs: list[Tensor] = []
        saved: list[Tensor] = []
        for plan, *own in zip(chunk_factors(table, first), *rows, strict=True):
            output, x, chunk = _one_chunk(own, x, plan)
            outputs.append(output)
            saved.extend(chunk)
        ctx.first = first
        ctx.save_for_backward(*table, *saved)
        return stack_chunks(outputs), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, dx: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        kept = ctx.saved_tensors  # a checkpointed block lets it be read once
        table, saved = GateProducts(*kept[:5]), kept[5:]
        each, found = len(_Chunk._fields), []
        with in_given_precision(dx):
            for i, plan in reversed(list(enumerate(chunk_factors(table, ctx.first)))):
                chunk = _Chunk(*saved[i * each : (i + 1) * each])
                dx, gradients = _one_chunk_back(chunk, plan, d_outputs[i], dx)
                found.append(gradients)
        return None, dx, *(stack_chunks(part) for part in zip(*found[::-1], strict=True))


def _one_chunk(rows: list[Tensor], x: Tensor, plan: ChunkFactors) -> tuple[Tensor, Tensor, _Chunk]:
    """Outputs of a chunk, the state after it, and what its gradient needs."""
    queries, keys, values = rows
    width = keys.shape[1]
    readers = torch.cat([keys, queries], 1)
    grams = torch.bmm(readers, keys.mT)
    weighted = _weigh(grams, plan, torch.empty_like(grams))
    eye = torch.eye(width, dtype=x.dtype, device=x.device).expand(len(x), -1, -1)
    inverse = torch.linalg.solve_triangular(
        weighted[:, :width], eye, upper=False, unitriangular=True
    )
    read = torch.bmm(readers, x)
    seen = combine(read, _reader_rows(plan))
    error = torch.bmm(inverse, seen[:, :width] - values)
    output = torch.baddbmm(seen[:, width:], weighted[:, width:], error, alpha=-1)
    after = leave(x, plan.ends)
    after.baddbmm_(keys.mT, side_by_side(error, plan.writes), alpha=-1)
    return output, after, _Chunk(x, readers, grams, weighted, inverse, read, error)


def _one_chunk_back(
    chunk: _Chunk, plan: ChunkFactors, d_output: Tensor, dx: Tensor
) -> tuple[Tensor, ChunkGradients]:
    """What reaches the state before a chunk, its rows and its factors."""
    x, readers, grams, weighted, inverse, read, error = chunk
    width = grams.shape[-1]
    felt = torch.bmm(readers[:, :width], dx)
    minus_d_error = combine(felt, plan.writes).baddbmm_(weighted[:, width:].mT, d_output)
    d_values = torch.bmm(inverse.mT, minus_d_error)
    # Minus what reaches the sums of M_0 and S_0 that keys and queries see.
    pulled = torch.cat([d_values, -d_output], 1)
    d_weighted = torch.bmm(pulled, error.mT)
    d_rows, d_writes = row_dots(pulled, read), row_dots(error, felt)
    d_weights = _readers_back(d_weighted * grams, plan)
    d_weights[:, -1] -= d_writes.m
    d_grams = _weigh(d_weighted, plan, d_weighted)
    pulled, written = side_by_side(pulled, _reader_rows(plan)), side_by_side(error, plan.writes)
    d_readers = torch.bmm(d_grams, readers[:, :width]).baddbmm_(pulled, x.mT, alpha=-1)
    d_keys = torch.bmm(d_grams.mT, readers).baddbmm_(written, dx.mT, alpha=-1)
    d_keys += d_readers[:, :width]
    dx, d_ends = leave_back(dx, x, plan.ends)
    dx.baddbmm_(readers.mT, pulled, alpha=-1)
    d_m, d_s = (_readers_back(-part, plan) for part in d_rows)
    d_m[:, -1] += d_ends.mm
    d_s[:, -1] += d_ends.ms
    rows = (d_readers[:, width:], d_keys, d_values)
    return dx, ChunkGradients(*rows, d_m, d_s, d_weights, d_ends.ss, -d_writes.s)


def _reader_rows(plan: ChunkFactors) -> Rows:
    """What keys, then queries, see of M_0 and S_0: [b, R, 1] each."""
    size = plan.rows.m.shape[1] - 1
    per_token = plan.weights.shape[-1] // size

    def rows(part: Tensor) -> Tensor:
        seen = part[:, :size].repeat_interleave(per_token, 1)
        return torch.cat([seen, plan.where_read(part)], 1)[..., None]

    return Rows(rows(plan.rows.m), rows(plan.rows.s))


def _weigh(grams: Tensor, plan: ChunkFactors, out: Tensor) -> Tensor:
    """Products of readers and keys, times what each write counts where the reader stands."""
    width, size = grams.shape[-1], plan.weights.shape[1] - 1
    seen, out_seen = (torch.unflatten(part[:, :width], 1, (size, -1)) for part in (grams, out))
    torch.mul(seen, plan.weights[:, :size, None], out=out_seen)
    torch.mul(grams[:, width:], plan.where_read(plan.weights), out=out[:, width:])
    return out


def _readers_back(part: Tensor, plan: ChunkFactors) -> Tensor:
    """Gradient of a factor at every M_t, [b, C + 1, ...], from that of readers, [b, R, ...]."""
    width, size = plan.weights.shape[-1], plan.weights.shape[1] - 1
    out = plan.where_read_back(part[:, width:])
    out[:, :size] += torch.unflatten(part[:, :width], 1, (size, -1)).sum(2)
    return out
