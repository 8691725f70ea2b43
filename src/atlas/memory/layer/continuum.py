"""Continuum memory (Nested Learning, arXiv 2512.24695): layers that learn at different speeds.

A chain of two-layer perceptrons stands in for the feed-forward part of a block. Level l learns
while it reads: its weights stay fixed for `period` tokens and then move by the sum of the steps
those tokens asked for,

    W <- W - sum over the period of theta_t grad_W ||MLP(k_t) - v_t||^2 / 2,

with k_t the level's normalised input, v_t = k_t @ value what it should learn to answer, and
theta_t = sigmoid(k_t . gate + bias) / (period * width), so that a full period of one repeated
input moves the answer about once towards its target, however long the period. Fast levels follow
the last few tokens, slow ones keep what many have in common. With the gates shut it is a plain
chain of perceptrons.

Everything is functional: what training learns (`Level`) and what the sequence has learned
(`LevelState`) go in, outputs and new state come out.

The feed-forward part of a block is `SwiGLU`, or `ContinuumFeedForward` with such levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from atlas.memory.miras.architecture import MemoryWeights, mlp

PERCEPTRON = mlp()


class Level(NamedTuple):
    """What training learns of one level: its start weights and how it learns from a sequence.

    up is [d, hidden], down [hidden, d], value [d, d], gate [d], bias [].
    """

    up: Tensor
    down: Tensor
    value: Tensor
    gate: Tensor
    bias: Tensor


class LevelState(NamedTuple):
    """What one level has learned of a sequence: weights [B, ...], steps still pending, tokens."""

    weights: MemoryWeights
    pending: MemoryWeights
    offset: int = 0

    def detached(self) -> LevelState:
        """The same values, cut from the graph."""
        weights, pending = (tuple(w.detach() for w in group) for group in self[:2])
        return LevelState(weights, pending, self.offset)


ContinuumState = tuple[LevelState, ...]


def periods_of(base: int, levels: int) -> tuple[int, ...]:
    """base, base^2, ...: how many tokens each level waits."""
    if base < 1 or levels < 1:
        raise ValueError(f"base and levels are at least 1, not {base} and {levels}")
    return tuple(base ** (level + 1) for level in range(levels))


def new_level(width: int, hidden: int, draw: torch.Generator) -> Level:
    """A level of ordinary random weights, in float32; its steps start half open."""
    shapes = ((width, hidden), (hidden, width), (width, width))
    up, down, value = (torch.randn(s, generator=draw) / math.sqrt(s[0]) for s in shapes)
    return Level(up, down, value, torch.zeros(width), torch.zeros(()))


def fresh_state(levels: Sequence[Level], batch: int) -> ContinuumState:
    """The state before the first token of `batch` sequences, in float32 or better."""

    def start(w: Tensor) -> Tensor:
        return w.expand(batch, -1, -1).to(torch.promote_types(w.dtype, torch.float32))

    starts = [(start(level.up), start(level.down)) for level in levels]
    return tuple(LevelState(w, tuple(torch.zeros_like(x) for x in w)) for w in starts)


def continuum(
    levels: Sequence[Level], periods: Sequence[int], x: Tensor, state: ContinuumState
) -> tuple[Tensor, ContinuumState]:
    """What a feed-forward part adds to x, level after level.

    Args:
        levels: From the fastest to the slowest, or in any order.
        periods: Tokens between two updates of each.
        x: [B, T, d].
        state: From `fresh_state` or an earlier call; cutting a sequence anywhere changes nothing.

    Returns:
        The sum of all levels' answers [B, T, d], each level reading x plus the answers before it,
        and the new state.
    """
    dtype, x = x.dtype, x.to(state[0].weights[0].dtype)
    total, after = torch.zeros_like(x), []
    for level, period, own in zip(levels, periods, state, strict=True):
        answer, new = _run_level(level, period, x + total, own)
        total = total + answer
        after.append(new)
    return total.to(dtype), tuple(after)


def learning_inputs(level: Level, period: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values [B, T, d] and steps [B, T] of a level whose input is x."""
    keys = rms_norm(x, x.shape[-1:])
    value, gate, bias = (part.to(x.dtype) for part in (level.value, level.gate, level.bias))
    steps = torch.sigmoid(keys @ gate + bias) / (period * x.shape[-1])
    return keys, keys @ value, steps


def _run_level(
    level: Level, period: int, x: Tensor, state: LevelState
) -> tuple[Tensor, LevelState]:
    keys, values, steps = learning_inputs(level, period, x)
    answers, done = [x[:, :0]], 0
    while done < x.shape[1]:
        stop = min(x.shape[1], done + period - state.offset)
        piece = slice(done, stop)
        answers.append(PERCEPTRON.apply(state.weights, keys[:, piece]))
        state = _learn(state, period, keys[:, piece], values[:, piece], steps[:, piece])
        done = stop
    return torch.cat(answers, 1), state


def _learn(
    state: LevelState, period: int, keys: Tensor, values: Tensor, steps: Tensor
) -> LevelState:
    """Add up what the tokens of one period ask for."""
    factors = PERCEPTRON.factors(state.weights, keys, lambda answer: answer - values)
    asked = ((left * steps[..., None]).mT @ right for left, right in factors)
    pending = tuple(old + new for old, new in zip(state.pending, asked, strict=True))
    return updated(state, period, pending, keys.shape[1])


def updated(state: LevelState, period: int, pending: MemoryWeights, tokens: int) -> LevelState:
    """The state `tokens` on; the pending steps are taken where a period ends."""
    if state.offset + tokens < period:
        return LevelState(state.weights, pending, state.offset + tokens)
    moved = tuple(w - step for w, step in zip(state.weights, pending, strict=True))
    return LevelState(moved, tuple(torch.zeros_like(w) for w in moved))


def continuum_naive(
    levels: Sequence[Level], periods: Sequence[int], x: Tensor, state: ContinuumState
) -> tuple[Tensor, ContinuumState]:
    """The same, token by token through all levels, with gradients from autograd."""
    outputs, now = [x[:, :0]], list(state)
    for t in range(x.shape[1]):
        row = x[:, t : t + 1]
        for place, (level, period) in enumerate(zip(levels, periods, strict=True)):
            answer, now[place] = _naive_token(level, period, row, now[place])
            row = row + answer
        outputs.append(row - x[:, t : t + 1])
    return torch.cat(outputs, 1), tuple(now)


def _naive_token(
    level: Level, period: int, row: Tensor, state: LevelState
) -> tuple[Tensor, LevelState]:
    key, value, step = learning_inputs(level, period, row)
    with torch.enable_grad():
        seen = tuple(w if w.requires_grad else w.clone().requires_grad_() for w in state.weights)
        loss = (PERCEPTRON.apply(seen, key) - value).square().sum((1, 2)) / 2
        asked = torch.autograd.grad((step[:, 0] * loss).sum(), seen, create_graph=True)
    pending = tuple(old + new for old, new in zip(state.pending, asked, strict=True))
    return PERCEPTRON.apply(state.weights, key), updated(state, period, pending, 1)


CarriedLevels = tuple[LevelState, ...] | None


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); it carries nothing from token to token."""

    def __init__(self, width: int, hidden: int) -> None:
        """Without biases."""
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def start(self, batch: int) -> CarriedLevels:
        """Nothing."""
        del batch
        return None

    def forward(self, x: Tensor, state: CarriedLevels) -> tuple[Tensor, CarriedLevels]:
        """[B, T, D] -> [B, T, D]."""
        del state
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x)), None


class ContinuumLevel(nn.Module):
    """What training learns of one level of `continuum`."""

    def __init__(self, width: int, hidden: int) -> None:
        """A perceptron of `hidden` units that learns while it reads."""
        super().__init__()
        self.up = nn.Parameter(torch.empty(width, hidden))
        self.down = nn.Parameter(torch.empty(hidden, width))
        self.value = nn.Parameter(torch.empty(width, width))
        self.gate = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ordinary random weights; steps start half open."""
        for matrix in (self.up, self.down, self.value):
            nn.init.normal_(matrix, std=1 / math.sqrt(matrix.shape[0]))
        nn.init.zeros_(self.gate)
        nn.init.zeros_(self.bias)

    def level(self) -> Level:
        """As `continuum` takes it."""
        return Level(self.up, self.down, self.value, self.gate, self.bias)


class ContinuumFeedForward(nn.Module):
    """A chain of levels, the first renewed every `base` tokens, the next every `base` squared."""

    def __init__(self, width: int, hidden: int, base: int, levels: int) -> None:
        """Each level has hidden / levels units, so that all together are as large as one."""
        super().__init__()
        self.periods = periods_of(base, levels)
        self.levels = nn.ModuleList(ContinuumLevel(width, hidden // levels) for _ in self.periods)

    def start(self, batch: int) -> CarriedLevels:
        """Every level as training left it."""
        return fresh_state(self._levels(), batch)

    def forward(self, x: Tensor, state: CarriedLevels) -> tuple[Tensor, CarriedLevels]:
        """[B, T, D] -> [B, T, D], and the levels after the last token."""
        assert state is not None
        return continuum(self._levels(), self.periods, x, state)

    def _levels(self) -> list[Level]:
        return [own.level() for own in self.levels if isinstance(own, ContinuumLevel)]
