"""Two levels of memory (TNT, arXiv 2511.07343): one for the whole text, some for shards of it.

The shared memory runs through the sequence in large chunks. Each local memory has small chunks and
goes back to a learnable start every `shard` tokens, so shards do not wait for one another: they are
run side by side, as if they were more sequences. Outputs add up: o_t = q_t M_t + sum of the local
ones. Local rules may have `queries="projected"`; their prefix goes back with the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.errors import InputError
from atlas.memory.kernels.chunked import run_rule
from atlas.memory.layer.follow import RuleState, begin, follow, follow_naive
from atlas.memory.miras.architecture import MemoryWeights
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.rule import Rule, Tokens
from atlas.memory.rules.state import MemoryState, initial_state


class LevelsState(NamedTuple):
    """One state for each memory.

    `position` of a local one counts from the start of its shard; where the next token begins a
    shard, as the first of a text does, it is the length of a shard.
    """

    shared: RuleState
    local: tuple[MemoryState, ...]


class LevelTokens(NamedTuple):
    """What each memory is given; the same tokens or its own."""

    shared: Tokens
    local: tuple[Tokens, ...]


def initial_levels(
    weights: MemoryWeights, starts: Sequence[Tensor], rules: Sequence[Rule], shard: int
) -> LevelsState:
    """The state before the first token.

    Args:
        weights: Where the shared memory starts, [B, H, rows, columns] each.
        starts: Where each local one starts, and goes back to, [H, d_k, d_v].
        rules: Of all memories, the shared one first.
        shard: Tokens of a shard.
    """
    pairs = zip(starts, rules[1:], strict=True)
    local = tuple(
        _fresh(start, len(weights[0]), rule)._replace(position=shard) for start, rule in pairs
    )
    return LevelsState(begin(weights, rules[0]), local)


def run_levels(
    tokens: LevelTokens,
    starts: Sequence[Tensor],
    state: LevelsState,
    rules: Sequence[Rule],
    shard: int,
) -> tuple[Tensor, LevelsState]:
    """Follow all rules over T tokens, shards in parallel.

    Args:
        tokens: For every memory.
        starts: What local memories go back to, [H, d_k, d_v] each.
        state: Before the first token.
        rules: Of all memories, the shared one first.
        shard: Tokens of a shard.

    Returns:
        Outputs [B, H, T, d_v] and the state after the last token.

    Raises:
        InputError: The state is further into a chunk than the rule's chunks are long.
    """
    for own, rule in zip((state.shared, *state.local), rules, strict=True):
        if own.offset >= rule.chunk:
            raise InputError(
                f"the state is {own.offset} tokens into a chunk; allowed: less than the rule's "
                f"chunk of {rule.chunk}. It was made with other chunks: start the text anew"
            )
    output, shared = follow(tokens.shared, state.shared, rules[0])
    local = zip(tokens.local, starts, state.local, rules[1:], strict=True)
    return _add_local(output, shared, [_run_shards(*own, shard) for own in local])


def run_levels_naive(
    tokens: LevelTokens,
    starts: Sequence[Tensor],
    state: LevelsState,
    rules: Sequence[Rule],
    shard: int,
) -> tuple[Tensor, LevelsState]:
    """The same, token by token: the law that `run_levels` is tested against."""
    output, shared = follow_naive(tokens.shared, state.shared, rules[0])
    local = zip(tokens.local, starts, state.local, rules[1:], strict=True)
    return _add_local(output, shared, [_run_tokens(*own, shard) for own in local])


def _add_local(
    output: Tensor, shared: RuleState, local: list[tuple[Tensor, MemoryState]]
) -> tuple[Tensor, LevelsState]:
    for own, _ in local:
        output = output + own
    return output, LevelsState(shared, tuple(state for _, state in local))


def _run_tokens(
    tokens: Tokens, start: Tensor, state: MemoryState, rule: Rule, shard: int
) -> tuple[Tensor, MemoryState]:
    """Token after token, back to the start whenever a shard is full."""
    outputs = []
    for t in range(tokens.length):
        if state.position == shard:
            state = _fresh(start, len(tokens.keys), rule)
        output, state = run_naive(tokens.cut(t, t + 1), state, rule)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def _run_shards(
    tokens: Tokens, start: Tensor, state: MemoryState, rule: Rule, shard: int
) -> tuple[Tensor, MemoryState]:
    """The open shard, then whole ones side by side, then the beginning of the last."""
    batch, outputs = len(tokens.keys), []
    head = min(tokens.length, shard - state.position)
    whole = (tokens.length - head) // shard
    tail = head + whole * shard
    if head:
        output, state = run_rule(tokens.cut(0, head), state, rule)
        outputs.append(output)
    if whole:
        folded = tokens.cut(head, tail).each(lambda part: _fold(part, shard))
        output, ended = run_rule(folded, _fresh(start, batch * whole, rule), rule)
        outputs.append(_unfold(output, batch))
        state = _last_shard(ended, batch)
    if tail < tokens.length:
        rest = tokens.cut(tail, tokens.length)
        output, state = run_rule(rest, _fresh(start, batch, rule), rule)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def _fresh(start: Tensor, batch: int, rule: Rule) -> MemoryState:
    return initial_state(start.expand(batch, *start.shape), rule)


def _fold(part: Tensor, shard: int) -> Tensor:
    """[B, H, n * shard, ...] -> [B * n, H, shard, ...]."""
    return torch.unflatten(part, 2, (-1, shard)).transpose(1, 2).flatten(0, 1)


def _unfold(part: Tensor, batch: int) -> Tensor:
    """[B * n, H, shard, ...] -> [B, H, n * shard, ...]."""
    return torch.unflatten(part, 0, (batch, -1)).transpose(1, 2).flatten(2, 3)


def _last_shard(state: MemoryState, batch: int) -> MemoryState:
    parts = (
        torch.unflatten(part, 0, (batch, -1))[:, -1] if isinstance(part, Tensor) else part
        for part in state
    )
    return MemoryState._make(parts)
