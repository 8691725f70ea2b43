"""The rule in chunks: the same outputs, states and gradients as `naive`, many times as fast.

A sequence is cut into runs of equal blocks; a few tokens alone go through the loop instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.memory.kernels.chunk_start import Shape, muon_scan, start_scan
from atlas.memory.kernels.exact import exact_scan
from atlas.memory.kernels.gate_products import GateProducts, gate_products
from atlas.memory.kernels.omega_window import (
    blocks_with_past,
    every_window,
    per_row_with_past,
    per_window_entry,
)
from atlas.memory.kernels.query_projection import project
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.precision import in_full_precision
from atlas.memory.rules.rule import Rule, Steps, Tokens, settle
from atlas.memory.rules.state import MemoryState


class BlockRun(NamedTuple):
    """Tokens begin to end - 1 in blocks of equal size.

    A new chunk starts every `period` blocks, and after the last block if `closes`.
    """

    begin: int
    end: int
    block: int
    period: int
    closes: bool


def within_one_chunk(begin: int, end: int, block: int, closes: bool) -> Iterator[BlockRun]:
    """Whole blocks, then the rest; no new chunk starts between them."""
    rest = (end - begin) % block
    whole = end - rest
    if begin < whole:
        yield BlockRun(begin, whole, block, whole - begin, closes and not rest)
    if rest:
        yield BlockRun(whole, end, rest, 1, closes)


def cut_into_runs(length: int, offset: int, chunk: int, block: int) -> Iterator[BlockRun]:
    """Cut T tokens so that chunks keep their places.

    Args:
        length: T, at least one.
        offset: Tokens that the open chunk already has.
        chunk: Tokens per chunk.
        block: Most tokens per block.
    """
    at = min(length, chunk - offset) if offset else 0
    if at:
        yield from within_one_chunk(0, at, block, closes=offset + at == chunk)
    block = min(block, chunk)
    whole = length - (length - at) % chunk
    if chunk % block == 0 and at < whole:
        yield BlockRun(at, whole, block, chunk // block, True)
        at = whole
    for begin in range(at, length, chunk):
        end = min(begin + chunk, length)
        yield from within_one_chunk(begin, end, block, closes=end - begin == chunk)


BLOCK = 64
"""Most tokens that are worked on together; for an exact window, most writes."""
MUON_BLOCK = 16


class _Piece(NamedTuple):
    """One stretch of tokens; keys and values with the c - 1 rows before them."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    steps: Steps


class _Walker(NamedTuple):
    """What moves along: [M | S] and M', batch and heads as one dimension."""

    x: Tensor
    start: Tensor


@in_full_precision
def run_chunked(tokens: Tokens, state: MemoryState, rule: Rule) -> tuple[Tensor, MemoryState]:
    """Follow `rule` over T tokens.

    Returns:
        Outputs [B, H, T, d_v] in the dtype of the values, and the state after the last token.
    """
    queries, prefix = tokens.queries, state.prefix
    if prefix is not None:
        queries, prefix = project(queries, tokens.keys, prefix)
    keys, values = (
        torch.cat(pair, 2) if rule.window > 1 else pair[1]
        for pair in ((state.keys, tokens.keys), (state.values, tokens.values))
    )
    whole = _Piece(queries, keys, values, settle(tokens, rule))
    x = torch.cat([state.memory, state.momentum], -1).flatten(0, 1)
    start = state.memory if state.start is None else state.start
    walker, outputs = _Walker(x, start.flatten(0, 1)), []
    for block_run in _block_runs(tokens.length, state.offset, rule):
        output, walker = _scan(_cut(whole, block_run, rule), block_run, walker, rule)
        outputs.append(output.transpose(0, 1).flatten(1, 2))
    sequences = state.memory.shape[:2]
    memory, momentum = torch.unflatten(walker.x, 0, sequences).chunk(2, -1)
    tail = slice(keys.shape[2] - rule.window + 1, None)
    return torch.unflatten(torch.cat(outputs, 1), 0, sequences), MemoryState(
        memory=memory,
        momentum=momentum,
        start=None if state.start is None else walker.start.view_as(memory),
        # Views would keep every key and value of the sequence alive.
        keys=keys[:, :, tail].clone(),
        values=values[:, :, tail].clone(),
        prefix=prefix,
        offset=(state.offset + tokens.length) % rule.chunk if state.start is not None else 0,
        position=state.position + tokens.length,
    )


def _block_runs(length: int, offset: int, rule: Rule) -> Iterable[BlockRun]:
    if rule.gradient == "exact":
        block = max(1, min(rule.chunk, BLOCK // rule.window)) if rule.window > 1 else rule.chunk
        return within_one_chunk(0, length, block, closes=False)
    block = MUON_BLOCK if rule.learner == "newton-schulz" else BLOCK
    return cut_into_runs(length, offset, rule.chunk, block)


def _cut(piece: _Piece, block_run: BlockRun, rule: Rule) -> _Piece:
    begin, end = block_run.begin, block_run.end
    with_past = slice(begin, end + rule.window - 1)
    return _Piece(
        piece.queries[:, :, begin:end],
        piece.keys[:, :, with_past],
        piece.values[:, :, with_past],
        Steps(*(part[:, :, begin:end] for part in piece.steps)),
    )


def _scan(
    piece: _Piece, block_run: BlockRun, walker: _Walker, rule: Rule
) -> tuple[Tensor, _Walker]:
    """Outputs [n, b, C, d_v] of one run of blocks, and the walker after it."""
    size, window, first_read = block_run.block, rule.window, 1 if rule.read == "after" else 0
    steps = Steps(*(_blocks(part, size) for part in piece.steps))
    queries = _blocks(piece.queries, size)
    if rule.gradient == "exact":
        keys, values = (_blocks(every_window(x, window), size * window) for x in piece[1:3])
        table = _table(steps, per_window_entry)
        output, x = exact_scan((queries, keys, values), table, walker.x, first_read)
        return output, _Walker(x, walker.start)
    keys, values = (
        blocks_with_past(part.flatten(0, 1), size, window).transpose(0, 1) for part in piece[1:3]
    )
    rows, shape = (queries, keys, values), Shape(first_read, block_run.period)
    if rule.learner == "newton-schulz":
        output, x = muon_scan(rows, steps, *walker, shape)
    else:
        output, x = start_scan(rows, _table(steps, per_row_with_past), *walker, shape)
    return output, _Walker(x, x.chunk(2, -1)[0] if block_run.closes else walker.start)


def _table(
    steps: Steps, over_window: Callable[[GateProducts, Tensor], GateProducts]
) -> GateProducts:
    keep, carry, step, added, gamma = steps
    if gamma.shape[-1] == 1:
        return gate_products(keep, carry, step * gamma[..., 0], added)
    return over_window(gate_products(keep, carry, step, added), gamma)


def _blocks(part: Tensor, size: int) -> Tensor:
    """[B, H, n * size, ...] -> [n, b, size, ...]."""
    return torch.unflatten(part.flatten(0, 1), 1, (-1, size)).transpose(0, 1)


def run_rule(tokens: Tokens, state: MemoryState, rule: Rule) -> tuple[Tensor, MemoryState]:
    """Follow `rule` over T tokens: in chunks, or directly if there is but one token.

    Args:
        tokens: T of them, at least one.
        state: Before the first.
        rule: The same that made the state.

    Returns:
        Outputs [B, H, T, d_v] in the dtype of the values, and the state after the last token.
    """
    run = run_naive if tokens.length == 1 else run_chunked
    return run(tokens, state, rule)
