"""The memory of a layer: tokens become keys, values, queries and gates, and rules read them.

There is one memory of the whole text and any number of local ones, none by default (see `levels`).
All are given the same tokens and gates, each has a rule and a start of its own.

Queries, keys and values pass a depthwise causal convolution first: every channel sees its own last
few values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, silu

from atlas.memory.layer.features import feature_size, features, initial_amplitudes, unit_features
from atlas.memory.layer.gates import Gates, MemoryGates, ReadMode
from atlas.memory.layer.levels import (
    LevelsState,
    LevelTokens,
    detach_levels,
    initial_levels,
    run_levels,
)
from atlas.memory.layer.settings import Heads, MemorySettings
from atlas.memory.layer.state import BranchState
from atlas.memory.rules.rule import Tokens
from atlas.memory.rules.state import initial_state


class CausalConvolution(nn.Module):
    """y_t = sum over i of weight[i] * x_{t - width + 1 + i}, channel by channel."""

    def __init__(self, channels: int, width: int) -> None:
        """A convolution over the last `width` tokens."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights that keep the size of independent inputs, up to a constant."""
        bound = len(self.weight) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def start(self, batch: int) -> Tensor:
        """The tail before the first token: nothing came before, [B, width - 1, channels]."""
        return self.weight.new_zeros(batch, len(self.weight) - 1, self.weight.shape[1])

    def forward(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve T tokens.

        Args:
            x: [B, T, channels].
            tail: The inputs before them, [B, width - 1, channels].

        Returns:
            [B, T, channels], and the tail after the last token.
        """
        length, rows = x.shape[1], torch.cat([tail.to(x.dtype), x], 1)
        # Few sums of whole rows: a library convolution of one channel each is slower.
        shifted = (rows[:, i : i + length] * weight for i, weight in enumerate(self.weight))
        total = torch.zeros_like(x)
        for part in shifted:
            total = total + part
        # A copy: a view would keep every row of the sequence alive.
        return total, rows[:, length:].clone()


class MemoryBranch(nn.Module):
    """A memory that learns while it reads; what comes out is not yet normalised."""

    def __init__(self, heads: Heads, settings: MemorySettings) -> None:
        """A memory of one matrix per head, [d_k, d]; d_k is d, or the number of its features."""
        super().__init__()
        self.heads, self.settings = heads, settings
        self.q_proj = heads.projection()
        self.k_proj = heads.projection()
        self.v_proj = heads.projection()
        self.convolution = CausalConvolution(3 * heads.total, settings.convolution)
        self.gates = MemoryGates(heads.total, heads.count, settings.rule.window)
        d_k = heads.width if settings.degree == 1 else feature_size(heads.width, settings.degree)
        self.initial = nn.Parameter(torch.empty(heads.count, d_k, heads.width))
        if settings.local_rules:
            every = (len(settings.local_rules), *self.initial.shape)
            self.local_initial = nn.Parameter(torch.empty(every))
        if settings.degree > 1:
            # Learned as a change of where they start, so that every start is zero.
            self.amplitude_change = nn.Parameter(torch.empty(settings.degree + 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Memories that hold nothing, and features that are those of exp(q . k)."""
        nn.init.zeros_(self.initial)
        if self.settings.local_rules:
            nn.init.zeros_(self.local_initial)
        if self.settings.degree > 1:
            nn.init.zeros_(self.amplitude_change)

    def start(self, persistent: Tensor, mode: ReadMode) -> BranchState:
        """The state before the first token, after the persistent ones were read.

        They decide where the memory starts, and what it projects queries onto. The text begins a
        chunk, a convolution and a momentum of its own, so padding before it changes nothing. Local
        memories begin the text as they begin every shard, where they learned to.

        Args:
            persistent: The persistent tokens of every sequence, [B, P, D].
            mode: How to read.
        """
        rule, batch = self.settings.rule, len(persistent)
        memory = self.initial.expand(batch, *self.initial.shape)
        levels = initial_levels(memory, self._local_starts(), self.settings.levels)
        state = BranchState(levels.shared, self.convolution.start(batch), levels.local)
        if not persistent.shape[1]:
            return state
        real = torch.ones(persistent.shape[:2], dtype=torch.bool, device=persistent.device)
        read = self(persistent, state, real, mode)[1].memory
        begun = initial_state(read.memory, rule)._replace(prefix=read.prefix)
        return state._replace(memory=begun)

    def forward(
        self, x: Tensor, state: BranchState, real: Tensor, mode: ReadMode
    ) -> tuple[Tensor, BranchState, Gates]:
        """Read and write T tokens.

        Args:
            x: [B, T, D], zero at padding.
            state: Before the first of them.
            real: False at padding, [B, T].
            mode: How to read.

        Returns:
            [B, T, H d], the state after the last token, and the gates.
        """
        projected = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
        mixed, tail = self.convolution(projected, state.tail)
        queries, keys, values = (self.heads.split(part) for part in silu(mixed).chunk(3, -1))
        gates = self.gates(x, mode.floors)
        here = real[:, None]
        tokens = Tokens(
            queries=self._queries(queries),
            # Padding writes nothing and forgets nothing.
            keys=self._keys(keys) * here[..., None],
            values=values,
            alpha=gates.alpha * here,
            eta=gates.eta,
            theta=gates.theta * here,
            gamma=gates.gamma,
        )
        out, after = self._follow(tokens, LevelsState(state.memory, state.local))
        return self.heads.join(out), BranchState(after.shared, tail, after.local), gates

    def recall(self, x: Tensor, memory: Tensor) -> Tensor:
        """What M [B, H, d_k, d] answers to tokens [B, T, D], nothing being written: [B, T, H d]."""
        queries = self._queries(self.heads.split(silu(self.q_proj(x))))
        return self.heads.join((queries.to(memory.dtype) @ memory).to(x.dtype))

    def _follow(self, tokens: Tokens, state: LevelsState) -> tuple[Tensor, LevelsState]:
        """What all memories say together, [B, H, T, d], and their states after it."""
        starts = self._local_starts()
        if self.settings.gradient == "detached":
            tokens = tokens.each(lambda part: part.detach())._replace(queries=tokens.queries)
            starts = tuple(own.detach() for own in starts)
            state = detach_levels(state)
        each = LevelTokens(tokens, (tokens,) * len(starts))
        return run_levels(each, starts, state, self.settings.levels)

    def _local_starts(self) -> tuple[Tensor, ...]:
        """[H, d_k, d] for each local memory."""
        return self.local_initial.unbind() if self.settings.local_rules else ()

    def _queries(self, x: Tensor) -> Tensor:
        unit = _unit(x)
        return unit if self.settings.degree == 1 else features(unit, self._amplitudes())

    def _keys(self, x: Tensor) -> Tensor:
        unit = _unit(x)
        return unit if self.settings.degree == 1 else unit_features(unit, self._amplitudes())

    def _amplitudes(self) -> Tensor:
        start = initial_amplitudes(self.settings.degree).to(self.amplitude_change)
        return start * (1 + self.amplitude_change)


def _unit(x: Tensor) -> Tensor:
    """Vectors of length one, in float32 at least."""
    return normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)
