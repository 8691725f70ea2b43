"""Low-rank adapters: a layer changes by scale * B @ A, with A [r, d_in] and B [d_out, r].

B and A are defined only up to an invertible gauge G: (B G^-1)(G A) is the same function. An SVD
picks one gauge out of many, and training continues differently from each. `nearest_gauge`
therefore brings a product back into the factors a client already holds.

All mixtures of a cohort lie in a small space (`Span`): whatever the weights, a mixture of
scale_l * B_l @ A_l has its columns among all the B columns and its rows among all the A rows.
Orthonormal bases of both, found once, turn every mixture into a small core between them; norms,
differences and singular values are those of the core.

How far adapters are from an anchor (`pull`) is told by their products, as the distance between
factors says nothing, and by the numbers of their heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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

    A' is `a` turned into the wanted row space, A' A'^T = a a^T (see `turned_into`). Turned, not
    projected: a projection shortens whatever the new row space lacks, round after round, and B'
    grows by as much, until no learning rate fits both. Where the product has fewer dimensions
    than `a` has rows, the row space is filled up with what is left of `a`, so that spare rows stay
    where they are. If the product is the client's own, A' and B' are its own factors, and they
    move continuously with the product.

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
    gauge, inverse = turned_into(basis, a, s[0])
    return gauge @ basis.T, (u[:, :rank] * s[:rank]) @ inverse[:rank]


def turned_into(basis: Tensor, a: Tensor, strongest: Tensor) -> tuple[Tensor, Tensor]:
    """The gauge M for which M Z^T is `a` turned into the row space of Z, and its inverse.

    Of all M with M M^T = a a^T it is the one with M Z^T nearest to `a`: with a = L S V^T it is
    L S O, O the orthogonal polar factor of S^2 V^T Z.

    Args:
        basis: Orthonormal columns Z [..., d_in, r].
        a: [..., r, d_in]. A direction that it lacks gets `WORST_CONDITION` of its largest.
        strongest: The largest singular value of the product, [...]: where `a` is nothing, both
            factors share it.
    """
    left, size, right = torch.linalg.svd(a, full_matrices=False)
    aim, _, toward = torch.linalg.svd(size.square()[..., None] * (right @ basis))
    turn = aim @ toward
    size = torch.maximum(size, WORST_CONDITION * size[..., :1])
    size = torch.where(size > 0, size, strongest.sqrt()[..., None])
    return (left * size[..., None, :]) @ turn, (left / size[..., None, :] @ turn).mT


class Layer(NamedTuple):
    """One adapted module of a cohort of n clients, R the largest rank.

    Attributes:
        a: [n, R, d_in], zero beyond each client's rank.
        b: [n, d_out, R], likewise.
        ranks: Integer [n].
        scales: What turns B @ A into the module's change, [n].
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor


class Slots(NamedTuple):
    """The rank slots in use, one after another, m in all; float64.

    Attributes:
        rows: Rows of all A [m, d_in].
        columns: Columns of all B [m, d_out].
        owner: Whose each slot is [m].
    """

    rows: Tensor
    columns: Tensor
    owner: Tensor


def used_slots(a: Tensor, b: Tensor, ranks: Tensor) -> Slots:
    """The slots of all clients without the padding, clients in order."""
    used = rank_mask(ranks, a.shape[1]).reshape(-1)
    owner = torch.arange(a.shape[0], device=a.device).repeat_interleave(a.shape[1])[used]
    rows = a.to(torch.float64).reshape(-1, a.shape[2])[used]
    columns = b.to(torch.float64).transpose(1, 2).reshape(-1, b.shape[1])[used]
    return Slots(rows, columns, owner)


@dataclass(frozen=True)
class Span:
    """Orthonormal bases of all B columns and all A rows, and where each slot lies in them.

    Attributes:
        left: [d_out, p].
        right: [d_in, q].
        left_core: Columns of all B in the left basis [p, m].
        right_core: Rows of all A in the right basis [q, m].
        owner: Whose each slot is [m].
        scales: Of every client [n], float64.
    """

    left: Tensor
    right: Tensor
    left_core: Tensor
    right_core: Tensor
    owner: Tensor
    scales: Tensor

    def core(self, row: Tensor) -> Tensor:
        """The mixture with the weights `row` [n], as a matrix [p, q] between the bases."""
        strength = row.to(torch.float64) * self.scales
        return (self.left_core * strength[self.owner]) @ self.right_core.T


def span_of(a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor) -> Span:
    """The span of a layer; arguments as in `Layer`."""
    slots = used_slots(a, b, ranks)
    left, left_core = torch.linalg.qr(slots.columns.T)
    right, right_core = torch.linalg.qr(slots.rows.T)
    return Span(left, right, left_core, right_core, slots.owner, scales.to(torch.float64))


def row_key(row: Tensor) -> bytes:
    """Equal for rows of W with equal bits, so that what follows from a row is computed once."""
    return row.cpu().numpy().tobytes()


def pull(
    layers: Sequence[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]],
    scales: Sequence[Tensor],
    heads: Sequence[tuple[Tensor, Tensor]],
) -> Tensor:
    """Half the squared distance of every row of a stack to its anchor [n]; differentiable.

    Args:
        layers: For every module (A [n, R, d_in], B [n, d_out, R]) and the anchor's; padded slots
            are zero and their gradients too.
        scales: What turns B @ A into a layer's change, one vector [n] per module.
        heads: Tensors of the head [n, ...] and the anchor's.
    """
    squares = [(here - there).square().flatten(1).sum(1) for here, there in heads]
    for (here, there), scale in zip(layers, scales, strict=True):
        gap = product_gap(here, there)
        squares.append(scale.to(gap.dtype).square() * gap)
    return 0.5 * torch.stack(squares).sum(0)


def product_gap(here: tuple[Tensor, Tensor], there: tuple[Tensor, Tensor]) -> Tensor:
    """The squared norm of B A - B0 A0 for pairs (A, B) and (A0, B0) [n]; nothing dense is formed.

    The difference is written as (B - B0) A + B0 (A - A0), one low-rank product. At the anchor its
    squared norm and the gradient are exactly zero, and near it nothing large cancels; with the
    square of B A - B0 A0 multiplied out, neither would hold.
    """
    (a, b), (a0, b0) = here, there
    left = torch.cat([b - b0, b0], dim=2)
    right = torch.cat([a, a - a0], dim=1)
    return squared_norms(right, left)
