"""Every server rule is new_k = sum over l of W[k, l] * adapter_l; this file applies W.

One layer of a cohort is A [n, R, d_in] and B [n, d_out, R], zero beyond each client's own rank;
scales [n] turn factors into what a layer really adds, scale * B @ A. Spaces:

- `product` mixes the scaled products and cuts the result back to each client's rank, the best
  approximation there is (Eckart-Young), without ever forming a d_out x d_in matrix. It comes back
  in the gauge nearest the client's own factors.
- `svd` is the same mixture in the gauge of the singular value decomposition.
- `factors` mixes A and the scaled B apart; cross terms make it differ from the product mixture.
  Where ranks differ, a slot that few clients have is averaged with the zeros of the others.
- `b` mixes the scaled B and leaves A alone, for clients that share one A.

`ROTATED` are the mixers that turn factors to a common gauge first (`ops.lowrank.gauge`). In all
of them a row of W equal to e_k returns client k's factors untouched, bit for bit. `stack_factors`
keeps every client's slots side by side, and so cuts nothing; `mixture_error` says how far the
others are from that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from atlas.ops.lowrank.factors import (
    Gauge,
    Layer,
    Span,
    nearest_gauge,
    rank_mask,
    row_key,
    span_of,
    squared_norms,
    svd_gauge,
    used_slots,
)
from atlas.ops.lowrank.gauge import mix_turned

ROW_TOLERANCE = 1e-9

Mixer = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def check_mixing(weights: Tensor) -> None:
    """Raise unless `weights` [..., n, n] is row-stochastic."""
    if weights.shape[-1] != weights.shape[-2]:
        raise ValueError(f"a mixing matrix is square, not {tuple(weights.shape)}")
    if not bool(torch.isfinite(weights).all()):
        raise ValueError("a mixing matrix must be finite")
    if float(weights.min()) < 0:
        raise ValueError(f"mixing weights must not be negative, found {float(weights.min()):.3g}")
    off = float((weights.sum(-1) - 1).abs().max())
    if off > ROW_TOLERANCE:
        raise ValueError(f"rows of a mixing matrix sum to one; one is off by {off:.3g}")


def restrict(weights: Tensor, allowed: Tensor) -> Tensor:
    """Drop the entries that are not `allowed` and renormalise each row.

    A row that loses everything becomes e_k: with nobody to learn from, a client keeps its own.
    Rows that lose nothing are returned bit for bit.

    Args:
        weights: Row-stochastic [n, n].
        allowed: Boolean [n, n], or [n] for columns.
    """
    kept = weights * allowed
    total = kept.sum(-1, keepdim=True)
    identity = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    shared = torch.where(total > 0, kept / total.clamp_min(torch.finfo(kept.dtype).tiny), identity)
    return torch.where((kept == weights).all(-1, keepdim=True), weights, shared)


def mix_rows(values: Tensor, weights: Tensor) -> Tensor:
    """Plain linear mixture of stacked values [n, ...]; identity rows come back bit for bit."""
    flat = values.reshape(values.shape[0], -1)
    mixed = (weights.to(torch.float64) @ flat.to(torch.float64)).to(values.dtype)
    own = is_identity_row(weights)
    return torch.where(own[:, None], flat, mixed).reshape(values.shape)


def is_identity_row(weights: Tensor) -> Tensor:
    """Which rows are exactly e_k: [n, n] -> bool [n]."""
    identity = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    return (weights == identity).all(-1)


def keeps_own(weights: Tensor) -> Tensor:
    """Which clients learn from nobody: W [n, n], or [layers, n, n] -> bool [n]."""
    own = is_identity_row(weights)
    return own.all(0) if own.dim() == 2 else own


def mix_factors(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Mix A and scale * B apart; slots beyond a client's own rank are cut."""
    own = is_identity_row(weights)[:, None, None]
    used = rank_mask(ranks, a.shape[1])
    new_a = torch.where(own, a, mix_rows(a, weights) * used[:, :, None])
    return new_a, mix_b(a, b, ranks, scales, weights)[1]


def mix_b(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Mix scale * B; exact if all clients have one A, but for the slots a client does not have."""
    scale = scales.to(b.dtype)[:, None, None]
    own = is_identity_row(weights)[:, None, None]
    used = rank_mask(ranks, b.shape[2])
    return a, torch.where(own, b, mix_rows(b * scale, weights) / scale * used[:, None, :])


def mix_product(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Mix scaled products exactly, then cut to each client's rank in its own gauge.

    Args:
        a: [n, R, d_in], zero beyond each rank.
        b: [n, d_out, R], zero beyond each rank.
        ranks: Integer [n].
        scales: What turns B @ A into the layer's change, [n].
        weights: Row-stochastic [n, n].

    Returns:
        The new A and B, in the dtype given.
    """
    return _mix_exactly(Layer(a, b, ranks, scales), weights, nearest_gauge)


def mix_svd(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The same cut of the same mixture as A = V^T and B = U S / scale, whatever A was before."""
    return _mix_exactly(Layer(a, b, ranks, scales), weights, svd_gauge)


def _mix_exactly(layer: Layer, weights: Tensor, gauge: Gauge) -> tuple[Tensor, Tensor]:
    """Cut every client's mixture to its rank; `gauge` says how the cut is split into A and B.

    One QR of all B columns and one of all A rows serve every client; a row of W only reweights
    the small core between them. Equal rows share one SVD.
    """
    span = span_of(*layer)
    made = layer._replace(a=layer.a.clone(), b=layer.b.clone())
    solved: dict[bytes, Decomposed] = {}
    for k in torch.nonzero(~is_identity_row(weights)).flatten().tolist():
        key = row_key(weights[k])
        if key not in solved:
            solved[key] = decompose(span, weights[k])
        cut_for(k, layer, solved[key], gauge, made)
    return made.a, made.b


def mix_rotated(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """`mix_factors` after turning the factors of each mixture to a common gauge."""
    layer, alike = Layer(a, b, ranks, scales), defaultdict(list)
    made = layer._replace(a=a.clone(), b=b.clone())
    for k in torch.nonzero(~is_identity_row(weights)).flatten().tolist():
        alike[row_key(weights[k])].append(k)
    for clients in alike.values():
        heard = torch.nonzero(weights[clients[0]] > 0).flatten()
        receivers = torch.tensor(clients, device=a.device)
        found = mix_turned(layer, heard, weights[clients[0], heard], receivers)
        made.a[receivers], made.b[receivers] = found.a, found.b
    return made.a, made.b


Decomposed = tuple[Tensor, Tensor, Tensor]
"""U [d_out, p], the singular values [p] and V [d_in, p] of a mixture, float64."""


def decompose(span: Span, row: Tensor) -> Decomposed:
    """The singular value decomposition of the mixture with the weights `row`."""
    u, s, vh = torch.linalg.svd(span.core(row), full_matrices=False)
    return span.left @ u, s, span.right @ vh.T


def cut_for(k: int, held: Layer, mixture: Decomposed, gauge: Gauge, made: Layer) -> None:
    """Cut a mixture to the rank of client `k`, and write its factors into `made`."""
    r = int(held.ranks[k])
    u, s, v = (part[..., :r] for part in mixture)
    factor_a, factor_b = gauge(u, s, v, held.a[k, :r].to(torch.float64))
    made.a[k, :r] = factor_a.to(held.a.dtype)
    made.b[k, :, :r] = (factor_b / held.scales[k]).to(held.b.dtype)


MIXERS: dict[str, Mixer] = {
    "product": mix_product,
    "svd": mix_svd,
    "factors": mix_factors,
    "b": mix_b,
}
"""By space; each keeps every client's rank."""

ROTATED: dict[str, Mixer] = {"factors": mix_rotated}
"""Likewise, after alignment: in the other spaces a common rotation cancels, or B does without."""


def stack_factors(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Put the slots of everybody a client learns from side by side: its exact mixture.

    Client k gets A = [A_1; A_2; ...] and B = [W_k1 scale_1 B_1, W_k2 scale_2 B_2, ...], of the
    rank that those with a weight have together. Its scale falls with that rank as alpha / rank
    does, and B is made up for it. A row equal to e_k returns client k's factors bit for bit.

    Args:
        a: [n, R, d_in], zero beyond each rank.
        b: [n, d_out, R], zero beyond each rank.
        ranks: Integer [n].
        scales: alpha / rank of every client [n].
        weights: Row-stochastic [n, n].

    Returns:
        The new A and B in the dtype given, padded to the largest new rank, and the new ranks.
    """
    slots, heard = used_slots(a, b, ranks), weights > 0
    sizes = (heard * ranks).sum(1)
    new_scales = torch.where(is_identity_row(weights), scales, scales * ranks / sizes)
    strength = weights * scales / new_scales[:, None]
    new_a = a.new_zeros(a.shape[0], int(sizes.max()), a.shape[2])
    new_b = b.new_zeros(b.shape[0], b.shape[1], int(sizes.max()))
    for k, size in enumerate(sizes.tolist()):
        chosen = heard[k, slots.owner]
        share = strength[k, slots.owner[chosen]]
        new_a[k, :size] = slots.rows[chosen].to(a.dtype)
        new_b[k, :, :size] = (slots.columns[chosen] * share[:, None]).T.to(b.dtype)
    return new_a, new_b, sizes


def mixture_error(trained: Sequence[Layer], mixed: Sequence[Layer], weights: Tensor) -> Tensor:
    """How far each client's mixture is from the exact mixture of products, relative to that.

    ||dW_k - sum over l of W[k, l] dW_l|| / ||sum over l of W[k, l] dW_l||, Frobenius norms over
    all layers together, in float64 and without dense matrices; 0 where the exact mixture is zero.

    Args:
        trained: The layers that were mixed.
        mixed: What came of them, with ranks and scales of their own.
        weights: W [n, n], or one per layer [layers, n, n]; more columns than rows where clients
            are mixed with more than themselves.

    Returns:
        One number per client [n].
    """
    per_layer = weights if weights.dim() == 3 else weights.expand(len(trained), -1, -1)
    gaps = torch.zeros(weights.shape[-2], dtype=torch.float64)
    sizes = torch.zeros_like(gaps)
    for before, after, rows in zip(trained, mixed, per_layer, strict=True):
        span, alike = span_of(*before), defaultdict(list)
        for k, row in enumerate(rows):
            alike[row_key(row)].append(k)
        for some in alike.values():
            exact = span.core(rows[some[0]].to(before.a.device))
            gaps[some] += _squared_gaps(span, after, some, exact).cpu()
            sizes[some] += exact.square().sum().cpu()
    return torch.where(sizes > 0, (gaps / sizes).sqrt(), 0.0)


def _squared_gaps(span: Span, mixed: Layer, some: list[int], exact: Tensor) -> Tensor:
    """The squared norms of some clients' changes minus `exact`, a core of the span.

    What lies outside the span is orthogonal to what lies within, so nothing large cancels.
    """
    columns = mixed.b[some].to(torch.float64) * mixed.scales[some][:, None, None]
    rows = mixed.a[some].to(torch.float64)
    inner_b, inner_a = span.left.T @ columns, rows @ span.right
    outer_b, outer_a = columns - span.left @ inner_b, rows - inner_a @ span.right.T
    inside = (inner_b @ inner_a - exact).square().sum((-2, -1))
    beside = squared_norms(outer_a, inner_b) + squared_norms(inner_a, outer_b)
    return inside + beside + squared_norms(outer_a, outer_b)
