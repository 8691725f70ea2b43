"""The chunk-start rule: every error of a chunk is measured at the memory the chunk began with.

No error depends on another of its chunk, so nothing is solved: E = K M' - V, and outputs and
state follow as in `exact`. The chunk size is part of the function here, and a large chunk is
walked in blocks that share one M'.

With orthogonalised momentum (Newton-Schulz, as in Muon and ATLAS), M_t = keep_t M_{t-1} + added_t
NS(S_t) is not linear in what is written, so no short form carries it: momenta of all tokens of a
block are built, orthogonalised together, and added up. Memory grows with C * d_k * d_v, hence small
blocks.
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
from atlas.memory.kernels.omega_window import band
from atlas.memory.rules.precision import in_given_precision
from atlas.memory.rules.rule import Steps
from atlas.ops.newton_schulz import newton_schulz


class _Block(NamedTuple):
    """What the gradient of a block needs.

    Attributes:
        x: [M_0 | S_0], [b, d_k, 2 d_v].
        start: M' [b, d_k, d_v].
        queries: [b, C, d_k].
        keys: [b, W, d_k].
        grams: Queries times keys, [b, C, W].
        weighted: The same times what each write counts for the query.
        read: Queries times x.
        error: E [b, W, d_v].
    """

    x: Tensor
    start: Tensor
    queries: Tensor
    keys: Tensor
    grams: Tensor
    weighted: Tensor
    read: Tensor
    error: Tensor


class Shape(NamedTuple):
    """Which row of the table the first token of a block reads, and how many blocks a chunk has."""

    first_read: int
    period: int

    def begins_chunk(self, block: int) -> bool:
        """Whether M' is taken anew; for the first block it is given."""
        return block > 0 and block % self.period == 0


def start_scan(
    rows: tuple[Tensor, Tensor, Tensor], table: GateProducts, x: Tensor, start: Tensor, shape: Shape
) -> tuple[Tensor, Tensor]:
    """Walk n blocks.

    Args:
        rows: Queries [n, b, C, d_k], keys [n, b, W, d_k] and values [n, b, W, d_v].
        table: Of [n, b, ...].
        x: M and S side by side, [b, d_k, 2 d_v].
        start: M' of the first chunk, [b, d_k, d_v].
        shape: Of blocks and chunks.

    Returns:
        Outputs [n, b, C, d_v] and the state after the last block.
    """
    result = _StartScan.apply(shape, x, start, *rows, *table)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], result)


class _StartScan(Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        shape: Shape,
        x: Tensor,
        start: Tensor,
        *parts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        rows, table = parts[:3], GateProducts(*parts[3:])
        outputs: list[Tensor] = []
        saved: list[Tensor] = []
        for i, plan in enumerate(chunk_factors(table, shape.first_read)):
            if shape.begins_chunk(i):
                start = x.chunk(2, -1)[0]
            output, x, block = _one_block([part[i] for part in rows], x, start, plan)
            outputs.append(output)
            saved.extend(block)
        ctx.shape = shape
        ctx.save_for_backward(*table, *saved)
        return stack_chunks(outputs), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, dx: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        kept = ctx.saved_tensors  # a checkpointed block lets it be read once
        table, saved = GateProducts(*kept[:5]), kept[5:]
        each, found = len(_Block._fields), []
        d_start = torch.zeros_like(saved[1])
        with in_given_precision(dx):
            for i, plan in reversed(list(enumerate(chunk_factors(table, ctx.shape.first_read)))):
                block = _Block(*saved[i * each : (i + 1) * each])
                dx, gradients = _one_block_back(block, plan, d_outputs[i], dx)
                # Errors are k M' - v: what reaches v reaches k M' with its sign turned.
                d_start.baddbmm_(block.keys.mT, gradients.values, alpha=-1)
                if ctx.shape.begins_chunk(i):
                    dx.chunk(2, -1)[0].add_(d_start)
                    d_start.zero_()
                found.append(gradients)
        stacked = (stack_chunks(part) for part in zip(*found[::-1], strict=True))
        return None, dx, d_start, *stacked


def _one_block(
    rows: list[Tensor], x: Tensor, start: Tensor, plan: ChunkFactors
) -> tuple[Tensor, Tensor, _Block]:
    """Outputs of a block, the state after it, and what its gradient needs."""
    queries, keys, values = rows
    error = torch.bmm(keys, start).sub_(values)
    grams = torch.bmm(queries, keys.mT)
    weighted = grams * plan.where_read(plan.weights)
    read = torch.bmm(queries, x)
    output = combine(read, _query_rows(plan)).baddbmm_(weighted, error, alpha=-1)
    after = leave(x, plan.ends)
    after.baddbmm_(keys.mT, side_by_side(error, plan.writes), alpha=-1)
    return output, after, _Block(x, start, queries, keys, grams, weighted, read, error)


def _one_block_back(
    block: _Block, plan: ChunkFactors, d_output: Tensor, dx: Tensor
) -> tuple[Tensor, ChunkGradients]:
    """What reaches the state before a block through reads and writes, its rows and its factors."""
    x, start, queries, keys, grams, weighted, read, error = block
    felt = torch.bmm(keys, dx)
    d_values = combine(felt, plan.writes).baddbmm_(weighted.mT, d_output)
    d_weighted = torch.bmm(-d_output, error.mT)
    d_rows, d_writes = row_dots(d_output, read), row_dots(error, felt)
    d_weights = plan.where_read_back(d_weighted * grams)
    d_weights[:, -1] -= d_writes.m
    d_grams = d_weighted.mul_(plan.where_read(plan.weights))
    pulled = side_by_side(d_output, _query_rows(plan))
    d_queries = torch.bmm(pulled, x.mT).baddbmm_(d_grams, keys)
    d_keys = torch.bmm(d_grams.mT, queries).baddbmm_(d_values, start.mT, alpha=-1)
    d_keys.baddbmm_(side_by_side(error, plan.writes), dx.mT, alpha=-1)
    dx, d_ends = leave_back(dx, x, plan.ends)
    dx.baddbmm_(queries.mT, pulled)
    d_m, d_s = (plan.where_read_back(part) for part in d_rows)
    d_m[:, -1] += d_ends.mm
    d_s[:, -1] += d_ends.ms
    rows = (d_queries, d_keys, d_values)
    return dx, ChunkGradients(*rows, d_m, d_s, d_weights, d_ends.ss, -d_writes.s)


def _query_rows(plan: ChunkFactors) -> Rows:
    """What queries see of M_0 and S_0: [b, C, 1] each."""
    return Rows(*(plan.where_read(part)[..., None] for part in plan.rows))


def muon_scan(
    rows: tuple[Tensor, Tensor, Tensor],
    steps: Steps,
    x: Tensor,
    start: Tensor,
    shape: Shape,
) -> tuple[Tensor, Tensor]:
    """Walk n blocks; arguments and results as in `start.start_scan`, with steps [n, b, C]."""
    outputs = []
    memory, momentum = x.chunk(2, -1)
    for i, (queries, keys, values) in enumerate(zip(*rows, strict=True)):
        if shape.begins_chunk(i):
            start = memory
        own = Steps(*(part[i] for part in steps))
        errors = keys @ start - values
        written = (keys[..., :, None] * errors[..., None, :]).flatten(-2)
        momenta = _momenta(written, momentum, own)
        memories = _memories(newton_schulz(momenta), memory, own)
        read = memories[:, shape.first_read : shape.first_read + queries.shape[1]]
        outputs.append((queries[:, :, None] @ read)[:, :, 0])
        memory, momentum = memories[:, -1], momenta[:, -1]
    return torch.stack(outputs), torch.cat([memory, momentum], -1)


def _momenta(written: Tensor, momentum: Tensor, steps: Steps) -> Tensor:
    """S_1 .. S_C [b, C, d_k, d_v] from writes [b, W, d_k * d_v] and S_0."""
    between, since = _products(steps.carry)
    factors = (between * steps.step[:, None, :]) @ band(steps.gamma)
    carried = since[..., None, None] * momentum[:, None]
    return carried - (factors @ written).view_as(carried)


def _memories(added: Tensor, memory: Tensor, steps: Steps) -> Tensor:
    """M_0 .. M_C [b, C + 1, d_k, d_v] from what each token adds and M_0."""
    between, since = _products(steps.keep)
    sums = ((between * steps.added[:, None, :]) @ added.flatten(-2)).view_as(added)
    return torch.cat([memory[:, None], since[..., None, None] * memory[:, None] + sums], 1)


def _products(gate: Tensor) -> tuple[Tensor, Tensor]:
    """As `table.spread`, for autograd to follow."""
    size = gate.shape[-1]
    past = torch.ones(size, size, dtype=torch.bool, device=gate.device).tril(-1)
    between = torch.where(past, gate[..., :, None], 1.0).cumprod(-2).tril()
    return between, between[..., 0] * gate[..., :1]
