"""Mixtures that cut nothing, and how far those that do are from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from atlas.ops.lowrank.factors import squared_norms
from atlas.ops.lowrank.mixing import is_identity_row
from atlas.ops.span import Layer, Span, row_key, span_of, used_slots


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
        weights: W [n, n], or one per layer [layers, n, n].

    Returns:
        One number per client [n].
    """
    per_layer = weights if weights.dim() == 3 else weights.expand(len(trained), -1, -1)
    gaps = torch.zeros(weights.shape[-1], dtype=torch.float64)
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
