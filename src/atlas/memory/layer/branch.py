"""The memory of a layer: tokens become keys, values, queries and gates, and rules read them.

There is one memory of the whole text and any number of local ones, none by default (see `levels`).
All are given the same tokens and gates, each has a rule and a start of its own.

Queries, keys and values pass a depthwise causal convolution first: every channel sees its own last
few values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, silu, softplus

from atlas.memory.layer.attention import join_heads, projection, split_heads
from atlas.memory.layer.features import feature_size, features, initial_amplitudes, unit_features
from atlas.memory.layer.follow import answer, at_rest, begin_again, shapes_of
from atlas.memory.layer.gates import Gate, GateMode, Gates, MemoryGates, ReadMode
from atlas.memory.layer.levels import LevelsState, LevelTokens, initial_levels, run_levels
from atlas.memory.layer.settings import LayerSettings
from atlas.memory.layer.state import BranchState, detached
from atlas.memory.miras.architecture import MemoryWeights
from atlas.memory.rules.rule import Tokens

THRESHOLD_START = 1.0
"""Of a huber bias, before the softplus."""


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

    def __init__(self, settings: LayerSettings) -> None:
        """A memory of one matrix per head, [d_k, d], or of two if it is a perceptron.

        d_k is d, or the number of its features.
        """
        super().__init__()
        width, heads, d_v = settings.width, settings.heads, settings.head_width
        self.settings = settings
        self.q_proj = projection(width)
        self.k_proj = projection(width)
        self.v_proj = projection(width)
        self.convolution = CausalConvolution(3 * width, settings.convolution)
        self.gates = MemoryGates(width, heads, settings.rule.window, settings.constant_momentum)
        d_k = d_v if settings.degree == 1 else feature_size(d_v, settings.degree)
        first, *second = shapes_of(settings.rule, d_k, d_v)
        self.initial = nn.Parameter(torch.empty(heads, *first))
        if second:
            self.initial_out = nn.Parameter(torch.empty(heads, *second[0]))
        if settings.local_rules:
            every = (len(settings.local_rules), heads, d_k, d_v)
            self.local_initial = nn.Parameter(torch.empty(every))
        if settings.rule.bias == "huber":
            self.threshold = Gate(width, heads, THRESHOLD_START)
        if settings.degree > 1:
            # Learned as a change of where they start, so that every start is zero.
            self.amplitude_change = nn.Parameter(torch.empty(settings.degree + 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Memories that hold nothing, and features that are those of exp(q . k).

        A perceptron that holds nothing is drawn: at zero each of its layers shuts the other off.
        """
        rule = self.settings.rule
        for weights in self._starts() if rule.architecture == "mlp" else ():
            # Logs of distributions are to differ by about one, whatever is summed up.
            spread = 1.0 if rule.retention == "kl" else weights.shape[-2] ** -0.5
            nn.init.normal_(weights, std=spread)
        if rule.architecture == "matrix":
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
        rules, batch = self.settings.rules, len(persistent)
        weights = tuple(own.expand(batch, *own.shape) for own in self._starts())
        levels = initial_levels(weights, self._local_starts(), rules, self.settings.shard)
        state = BranchState(levels.shared, self.convolution.start(batch), levels.local)
        if not persistent.shape[1]:
            return state
        real = torch.ones(persistent.shape[:2], dtype=torch.bool, device=persistent.device)
        writing = mode._replace(gates=GateMode.STORAGE)  # a start is the same for every reading
        read = self(persistent, state, real, writing)[1].memory
        return state._replace(memory=begin_again(read, rules[0]))

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
        queries, keys, values = (self._split(part) for part in silu(mixed).chunk(3, -1))
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
            delta=self._thresholds(x),
        )
        starts, memories = self._local_starts(), LevelsState(state.memory, state.local)
        if mode.gates is GateMode.RETRIEVAL:
            tokens = tokens._replace(alpha=tokens.alpha * 0, theta=tokens.theta * 0)
            memories = LevelsState(
                at_rest(memories.shared), tuple(at_rest(own) for own in memories.local)
            )
        if self.settings.memory_gradient == "detached":
            tokens = tokens.each(lambda part: part.detach())._replace(queries=tokens.queries)
            starts = tuple(own.detach() for own in starts)
            memories = detached(memories)
        out, after = run_levels(
            LevelTokens(tokens, (tokens,) * len(starts)),
            starts,
            memories,
            self.settings.rules,
            self.settings.shard,
        )
        return join_heads(out), BranchState(after.shared, tail, after.local), gates

    def recall(self, x: Tensor, weights: MemoryWeights) -> Tensor:
        """What a memory answers to tokens [B, T, D], nothing being written: [B, T, H d]."""
        queries = self._queries(self._split(silu(self.q_proj(x))))
        return join_heads(answer(weights, queries, self.settings.rule).to(x.dtype))

    def _starts(self) -> MemoryWeights:
        """[H, rows, columns] for each matrix of the memory of the whole text."""
        if self.settings.rule.architecture == "mlp":
            return self.initial, self.initial_out
        return (self.initial,)

    def _thresholds(self, x: Tensor) -> Tensor | None:
        """How long an error may be before it is cut, of any size above zero: [B, H, T]."""
        if self.settings.rule.bias != "huber":
            return None
        logits = linear(x, self.threshold.weight, self.threshold.bias)
        return softplus(logits.to(torch.promote_types(x.dtype, torch.float32))).transpose(1, 2)

    def _split(self, x: Tensor) -> Tensor:
        return split_heads(x, self.settings.heads)

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
