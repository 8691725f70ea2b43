"""Low-rank adapters: a layer changes by scale * B @ A, with A [r, d_in] and B [d_out, r].

B and A are defined only up to an invertible gauge G: (B G^-1)(G A) is the same function. An SVD
picks one gauge out of many, and training continues differently from each. `nearest_gauge`
therefore brings a product back into the factors a client already holds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Gauge = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Splits U diag(s) V^T into A' [r, d_in] and B' [d_out, r], given u, s, v and a client's own A."""

RANK_TOLERANCE = 1e-12
"""Singular values below this share of the largest count as zero (float64 throughout)."""

WORST_CONDITION = 1e-6
"""Where A itself is singular, no direction of A' is smaller than this share of its largest."""


def rank_mask(ranks: Tensor, size: int) -> Tensor:
    """Which of `size` padded rank slots each client uses: [n] -> bool [n, size]."""
    return torch.arange(size, device=ranks.device) < ranks[:, None]


def delta(a: Tensor, b: Tensor, scale: Tensor | float) -> Tensor:
    """The dense change scale * B @ A, [..., d_out, d_in]."""
    product = b @ a
    return product * (scale[..., None, None] if isinstance(scale, Tensor) else scale)


def squared_norms(a: Tensor, b: Tensor) -> Tensor:
    """The squared norm of B A for A [..., r, d_in] and B [..., d_out, r]; nothing dense is formed.

    It is tr(B^T B A A^T).
    """
    columns, rows = b.mT @ b, a @ a.mT
    return (columns * rows).sum((-2, -1)).clamp_min(0.0)  # rounding may leave less than nothing


def factor_dense(change: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """A dense change [d_out, d_in] as A [r, d_in] and B [d_out, r] with B @ A = change.

    Args:
        change: In float64.
        noise: Relative rounding of the numbers it was added up from. Rounding spreads over all
            singular values; those it alone accounts for are left out, and r is the number of the
            others (at least one).

    Returns:
        Both factors, the singular values shared between them.
    """
    u, s, vh = torch.linalg.svd(change, full_matrices=False)
    least = noise * max(change.shape) ** 0.5 * float(s[0])
    rank = max(1, int((s > least).sum()))
    root = s[:rank].sqrt()
    return root[:, None] * vh[:rank], u[:, :rank] * root


def svd_gauge(u: Tensor, s: Tensor, v: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """A' = V^T and B' = U diag(s); the client's own A does not count."""
    del a
    return v.T, u * s


def nearest_gauge(u: Tensor, s: Tensor, v: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    r"""Factor U diag(s) V^T as B' A' with A' as near to `a` as that row space allows.

    With an orthonormal basis Z of the wanted row space, the nearest A' is a Z Z^T, reached by the
    gauge M = a Z; then B' = U diag(s) M^-1. Where the product has fewer dimensions than `a` has
    rows, Z is filled up with what is left of `a`, so that spare rows stay where they are. If the
    product is the client's own, A' and B' are its own factors, and they move continuously with
    the product. Singular values of M are floored (half the least of `a`), which keeps B' bounded
    when the new row space is nearly orthogonal to the old one; the product stays exact.

    Args:
        u: Left singular vectors [d_out, r].
        s: Singular values, descending [r].
        v: Right singular vectors [d_in, r].
        a: The client's own A [r, d_in].

    Returns:
        A' [r, d_in] and B' [d_out, r], the product's scale inside B'.
    """
    rank = int((s > RANK_TOLERANCE * s[0]).sum()) if float(s[0]) > 0 else 0
    if rank == 0:
        return a.clone(), torch.zeros_like(u)
    basis = v[:, :rank]
    if rank < a.shape[0]:
        rest = a - (a @ basis) @ basis.T
        spare = torch.linalg.svd(rest, full_matrices=False).Vh[: a.shape[0] - rank].T
        basis = torch.cat([basis, spare], dim=1)
    left, size, right = torch.linalg.svd(a @ basis)
    size = size.clamp_min(_gauge_floor(a, s))
    inverse = right.T @ (left / size).T
    new_a = (left * size) @ right @ basis.T
    new_b = (u[:, :rank] * s[:rank]) @ inverse[:rank]
    return new_a, new_b


def _gauge_floor(a: Tensor, s: Tensor) -> float:
    own = torch.linalg.svdvals(a)
    if float(own[0]) == 0.0:  # nothing to be near to: share the size between both factors
        return float(s[0].sqrt())
    return max(0.5 * float(own[-1]), WORST_CONDITION * float(own[0]))
