"""The Miras family: any bias with any retention, learner and architecture.

A variant is four pieces and a chunk size. All tokens of a chunk take their gradient at the
weights the chunk started from; with chunks of one token every variant is its published rule.
`variant_chunked` runs one in closed form, `variant_naive` token by token; both take and return
the state that this file defines. Formulas: docs/memory-variants.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.memory.miras.architecture import Architecture, MemoryWeights, matrix, mlp
from atlas.memory.miras.bias import Bias, huber, l2, lp
from atlas.memory.miras.learner import Learner, descent
from atlas.memory.miras.retention import Retention, kl, lq
from atlas.memory.miras.retention import l2 as decay

SMALLEST_GATE = 1e-6
"""Retention 1 - alpha and eta are held above it: their logs are added up."""


@dataclass(frozen=True)
class Variant:
    """One choice on each of the four axes, and the chunk size, which is part of the function."""

    bias: Bias
    retention: Retention
    learner: Learner
    architecture: Architecture
    chunk: int = 16


MONETA = Variant(lp(3.0), lq(4.0), descent(), mlp())
YAAD = Variant(huber(), decay(), descent(), mlp())
MEMORA = Variant(l2(), kl(), descent(), mlp())
LINEAR = Variant(l2(), decay(), descent(), matrix())
PRESETS = {"moneta": MONETA, "yaad": YAAD, "memora": MEMORA, "linear": LINEAR}


class VariantTokens(NamedTuple):
    """What a sequence asks of its memory; gates are per token and head, [B, H, T].

    queries and keys are [B, H, T, d_k], values [B, H, T, d_v]; alpha forgets (0 keeps all), eta
    carries momentum, theta is the step, delta the threshold of a huber bias.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    alpha: Tensor
    eta: Tensor
    theta: Tensor
    delta: Tensor | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> VariantTokens:
        """The same change made to every part."""
        return VariantTokens(
            queries=change(self.queries),
            keys=change(self.keys),
            values=change(self.values),
            alpha=change(self.alpha),
            eta=change(self.eta),
            theta=change(self.theta),
            delta=None if self.delta is None else change(self.delta),
        )

    def cut(self, start: int, stop: int) -> VariantTokens:
        """Tokens start to stop - 1."""
        return self.each(lambda part: part[:, :, start:stop])

    def prepared(self, dtype: torch.dtype) -> VariantTokens:
        """In the dtype of the state, with gates whose logs are finite."""
        cast = self.each(lambda part: part.to(dtype))
        return cast._replace(
            alpha=cast.alpha.clamp_max(1 - SMALLEST_GATE), eta=cast.eta.clamp_min(SMALLEST_GATE)
        )


class VariantState(NamedTuple):
    """A memory between two tokens; every matrix [B, H, rows, columns].

    dual accumulates, momentum is the learner's S, start the dual at the start of the chunk,
    anchor where forgetting leads, offset how many tokens of the chunk are done, and position how
    many there were since the start.
    """

    dual: MemoryWeights
    momentum: MemoryWeights
    start: MemoryWeights
    anchor: MemoryWeights
    offset: int = 0
    position: int = 0

    def detached(self) -> VariantState:
        """The same values, cut from the graph."""
        groups = (tuple(w.detach() for w in group) for group in self[:4])
        dual, momentum, start, anchor = groups
        return VariantState(dual, momentum, start, anchor, self.offset, self.position)


def fresh_state(weights: MemoryWeights, anchor: MemoryWeights | None = None) -> VariantState:
    """The state before the first token, in float32 or better.

    Args:
        weights: Duals (for `kl` logs) [B, H, rows, columns]; gradients reach them.
        anchor: Where forgetting leads, of the same shapes; zero, as published, if None. A
            two-layer memory that has forgotten everything to zero is dead, since each layer's
            gradient is a multiple of the other; with `weights` as anchor it can learn again.
    """
    start = tuple(w.to(torch.promote_types(w.dtype, torch.float32)) for w in weights)
    zero = tuple(torch.zeros_like(w) for w in start)
    if anchor is None:
        return VariantState(start, zero, start, zero)
    ends = tuple(a.to(w.dtype) for a, w in zip(anchor, start, strict=True))
    return VariantState(start, zero, start, ends)


def advanced(
    variant: Variant, state: VariantState, dual: MemoryWeights, momentum: MemoryWeights, n: int
) -> VariantState:
    """The state n tokens on, its chunk closed if these were the last of it."""
    position = state.position + n
    if state.offset + n < variant.chunk:
        offset = state.offset + n
        return state._replace(dual=dual, momentum=momentum, offset=offset, position=position)
    closed = tuple(variant.retention.close(w, variant.chunk) for w in dual)
    return VariantState(closed, momentum, closed, state.anchor, position=position)


def start_weights(variant: Variant, state: VariantState) -> MemoryWeights:
    """The weights at which the current chunk takes its gradients."""
    return tuple(variant.retention.weights(start, start) for start in state.start)


def present_weights(variant: Variant, state: VariantState) -> MemoryWeights:
    """The weights that the memory as it stands answers with."""
    pairs = zip(state.dual, state.start, strict=True)
    return tuple(variant.retention.weights(dual, start) for dual, start in pairs)


def read(variant: Variant, state: VariantState, queries: Tensor) -> Tensor:
    """What the memory as it stands answers to queries [B, H, n, d_k]."""
    return variant.architecture.apply(present_weights(variant, state), queries)
