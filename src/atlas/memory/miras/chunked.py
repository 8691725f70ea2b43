"""A Miras variant in closed form: the tokens of a chunk in parallel, chunk after chunk.

A sequence is cut into chunks, gradients are taken where each starts, and it is closed where it
ends; in between every matrix of the memory follows a path of its own.

With gradients g_j taken at the chunk's start, momentum and dual are linear in them:

    S_t = fade_t S_0 - sum_j trace[t, j] g_j
    A_t = Z + kept_t (A_0 - Z) + sum_j decay[t, j] weight_j shape(S_j)

where kept is the product of all retentions up to t, decay that from j to t, and Z the anchor that
forgetting leads to. Gradients are outer products, g_j = left_j^T right_j. So if neither learner nor
retention has a `shape`, a token reads A_t without it being formed (`follow_factors`); if only the
retention has one, the n duals are formed (`follow_duals`); else all n momenta as well
(`follow_matrices`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.memory.miras.architecture import Apply, Factors
from atlas.memory.miras.learner import decay_matrix
from atlas.memory.miras.variant import (
    Variant,
    VariantState,
    VariantTokens,
    advanced,
    read,
    start_weights,
)


class PathFactors(NamedTuple):
    """Coefficients of n tokens: decay and trace [B, H, n, n]; kept, fade, weight [B, H, n]."""

    decay: Tensor
    kept: Tensor
    trace: Tensor
    fade: Tensor
    weight: Tensor


class Before(NamedTuple):
    """One matrix of the state before the segment."""

    dual: Tensor
    momentum: Tensor
    start: Tensor
    anchor: Tensor


class Path(NamedTuple):
    """One matrix along a segment: how each token reads it, and where it ends."""

    reader: Apply
    dual: Tensor
    momentum: Tensor


Follow = Callable[[Variant, PathFactors, Before, tuple[Tensor, Tensor]], Path]


def follow_for(variant: Variant) -> Follow:
    """The cheapest form that is exact for the variant."""
    if variant.learner.shape is not None:
        return follow_matrices
    return follow_factors if variant.retention.shape is None else follow_duals


class Spent(NamedTuple):
    """A linear learner: A_t = Z + kept_t (A_0 - Z) + carry_t S_0 - sum_j mix[t, j] g_j."""

    mix: Tensor
    carry: Tensor
    dual: Tensor
    momentum: Tensor


def spend(plan: PathFactors, before: Before, factors: tuple[Tensor, Tensor]) -> Spent:
    """Coefficients mix [B, H, n, n] and carry [B, H, n], and where dual and momentum end."""
    left, right = factors
    weighted = plan.decay * plan.weight[..., None, :]
    mix = weighted @ plan.trace
    carry = (weighted @ plan.fade[..., None])[..., 0]

    def written(coefficients: Tensor) -> Tensor:
        return (left * coefficients[..., -1, :, None]).mT @ right

    old = last(plan.kept) * (before.dual - before.anchor) + last(carry) * before.momentum
    momentum = last(plan.fade) * before.momentum - written(plan.trace)
    return Spent(mix, carry, before.anchor + old - written(mix), momentum)


def follow_factors(
    variant: Variant, plan: PathFactors, before: Before, factors: tuple[Tensor, Tensor]
) -> Path:
    """Learner and retention linear: x A_t needs the products x . left_j alone."""
    left, right = factors
    mix, carry, dual, momentum = spend(plan, before, factors)
    scale = variant.retention.scale(before.start)
    away = before.dual - before.anchor

    def reader(x: Tensor) -> Tensor:
        old = plan.kept[..., None] * (x @ away) + carry[..., None] * (x @ before.momentum)
        return scale * (x @ before.anchor + old - ((x @ left.mT) * mix) @ right)

    return Path(reader, dual, momentum)


def follow_duals(
    variant: Variant, plan: PathFactors, before: Before, factors: tuple[Tensor, Tensor]
) -> Path:
    """Only the learner linear: A_t of every token, n matrices at once."""
    left, right = factors
    mix, carry, dual, momentum = spend(plan, before, factors)
    written = (left.mT[..., None, :, :] * mix[..., None, :]) @ right[..., None, :, :]
    kept = faded(plan, before) + spread(carry, before.momentum)
    return Path(row_reader(variant, kept - written, before), dual, momentum)


def follow_matrices(
    variant: Variant, plan: PathFactors, before: Before, factors: tuple[Tensor, Tensor]
) -> Path:
    """Any rule, by forming S_t and A_t of every token: n matrices at once."""
    left, right = factors
    gradients = left[..., :, None] * right[..., None, :]
    momentum = spread(plan.fade, before.momentum) - summed(plan.trace, gradients)
    shape = variant.learner.shape
    increments = momentum if shape is None else shape(momentum)
    dual = faded(plan, before) + summed(plan.decay * plan.weight[..., None, :], increments)
    reader = row_reader(variant, dual, before)
    return Path(reader, dual[..., -1, :, :], momentum[..., -1, :, :])


def row_reader(variant: Variant, duals: Tensor, before: Before) -> Apply:
    """Each row reads its own matrix: duals [B, H, n, rows, columns]."""
    shape = variant.retention.shape
    shaped = duals if shape is None else shape(duals)
    scale = variant.retention.scale(before.start)

    def reader(x: Tensor) -> Tensor:
        return scale * (x[..., None, :] @ shaped)[..., 0, :]

    return reader


def faded(plan: PathFactors, before: Before) -> Tensor:
    """What each token still has of the dual before, [B, H, n, rows, columns]."""
    away, anchor = before.dual - before.anchor, before.anchor
    return torch.addcmul(anchor[..., None, :, :], plan.kept[..., None, None], away[..., None, :, :])


def last(coefficient: Tensor) -> Tensor:
    """[B, H, n] -> that of the last token, [B, H, 1, 1]."""
    return coefficient[..., -1, None, None]


def spread(coefficient: Tensor, matrix: Tensor) -> Tensor:
    """[B, H, n] times [B, H, rows, columns] -> [B, H, n, rows, columns]."""
    return coefficient[..., None, None] * matrix[..., None, :, :]


def summed(coefficients: Tensor, matrices: Tensor) -> Tensor:
    """sum_j coefficients[t, j] matrices[j] -> [B, H, n, rows, columns]."""
    return (coefficients @ matrices.flatten(-2)).reshape(matrices.shape)


def variant_chunked(
    variant: Variant, tokens: VariantTokens, state: VariantState
) -> tuple[Tensor, VariantState]:
    """Write and read a sequence, reading after writing.

    Args:
        variant: The rule.
        tokens: T tokens; T need not be a multiple of the chunk.
        state: From `fresh_state` or an earlier call; cutting a sequence anywhere changes nothing.

    Returns:
        Outputs [B, H, T, d_v] in the dtype of the values, and the state after the last token.
    """
    dtype, total, done = tokens.values.dtype, tokens.keys.shape[2], 0
    tokens = tokens.prepared(state.dual[0].dtype)
    outputs = [tokens.values[:, :, :0]]
    while done < total:
        stop = min(total, done + variant.chunk - state.offset)
        output, state = run_segment(variant, tokens.cut(done, stop), state, follow_for(variant))
        outputs.append(output)
        done = stop
    return torch.cat(outputs, 2).to(dtype), state


def run_segment(
    variant: Variant, tokens: VariantTokens, state: VariantState, follow: Follow
) -> tuple[Tensor, VariantState]:
    """Tokens that lie in one chunk."""
    logs = torch.log1p(-tokens.alpha)
    unrolled = variant.learner.unroll(tokens.eta, tokens.theta)
    plan = PathFactors(decay_matrix(logs), logs.cumsum(-1).exp(), *unrolled)
    before = map(Before, state.dual, state.momentum, state.start, state.anchor)
    factors = chunk_start_factors(variant, tokens, state)
    paths = [follow(variant, plan, *pair) for pair in zip(before, factors, strict=True)]
    output = variant.architecture.forward([path.reader for path in paths], tokens.queries)
    dual, momentum = tuple(path.dual for path in paths), tuple(path.momentum for path in paths)
    after = advanced(variant, state, dual, momentum, tokens.keys.shape[2])
    if after.offset == 0:
        # The last token of a chunk reads what closing it left.
        last = read(variant, after, tokens.queries[:, :, -1:])
        output = torch.cat([output[:, :, :-1], last], 2)
    return output, after


def chunk_start_factors(variant: Variant, tokens: VariantTokens, state: VariantState) -> Factors:
    """(left, right) of every matrix's gradients at the weights the chunk started from."""

    def pull(answer: Tensor) -> Tensor:
        return variant.bias(answer - tokens.values, tokens.delta)

    return variant.architecture.factors(start_weights(variant, state), tokens.keys, pull)
