"""The leading part of mixtures of low-rank changes, many at a time, in each client's own gauge.

A mixture is M = C^T S R: the rows of R [q, d_in] are rows of A, those of C [q, d_out] the columns
of B that go with them, and S is diagonal and says what each counts. Wanted are its strongest right
directions. With S C C^T S = F F^T they are the left directions of R^T F, so one symmetric q x q
matrix, F^T R R^T F, tells them, and no tall matrix is factorised. Squares resolve directions down
to `RESOLVED` of the strongest, which is below the rounding of the float32 numbers that adapters are
kept in. M itself is then applied to the directions, so that what is kept of it is exact for them.

`nearest_gauge` in `factors` says which gauge is wanted and why; it is also what is called for the
few clients whose mixture has fewer dimensions than they have ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas.ops.lowrank.factors import Layer, nearest_gauge, turned_into

RESOLVED = 1e-8
"""Singular values below this share of the largest count as zero: the root of float64's rounding."""

SHIFT = 1e-15
"""Share of its trace that is added to a Gram matrix, so that rounding leaves it positive."""


class Leading(NamedTuple):
    """The leading part of k mixtures M, float64.

    Attributes:
        right: Orthonormal directions [k, d_in, p], the strongest first.
        image: M @ right [k, d_out, p].
        sizes: Singular values [k, p]; zero where they are not resolved.
    """

    right: Tensor
    image: Tensor
    sizes: Tensor


class Exact(NamedTuple):
    """Mixtures before they are cut: what of them can matter, and the energy of all of them.

    Attributes:
        leading: Of k mixtures.
        energy: Their squared norms [k].
    """

    leading: Leading
    energy: Tensor

    def select(self, some: Tensor) -> Exact:
        """Some of them [c]."""
        return Exact(Leading(*(value[some] for value in self.leading)), self.energy[some])

    def and_then(self, other: Exact) -> Exact:
        """These and others, filled up with zeros to as many directions."""
        both = list(zip(self.leading, other.leading, strict=True))
        most = max(value.shape[-1] for value in both[-1])
        parts = ([pad(value, (0, most - value.shape[-1])) for value in pair] for pair in both)
        energy = torch.cat([self.energy, other.energy])
        return Exact(Leading(*(torch.cat(pair) for pair in parts)), energy)


def leading_of_slots(rows: Tensor, columns: Tensor, strength: Tensor, count: int) -> Leading:
    """The leading part of M = columns^T @ diag(strength) @ rows, all float64.

    Args:
        rows: [k, q, d_in].
        columns: [k, q, d_out].
        strength: [k, q].
        count: Directions wanted.

    Returns:
        At most `count` directions, and no more than any M can have.
    """
    slots, d_in, d_out = rows.shape[1], rows.shape[2], columns.shape[2]
    if slots >= min(d_in, d_out):
        return leading_of_dense(columns.mT @ (strength[..., None] * rows), count)
    factor = _square_root(strength[..., None] * (columns @ columns.mT) * strength[:, None])
    strongest = _strongest(factor.mT @ (rows @ rows.mT) @ factor, count)
    right = torch.linalg.qr(rows.mT @ (factor @ strongest)).Q
    return _applied(right, columns.mT @ (strength[..., None] * (rows @ right)))


def leading_of_dense(mixtures: Tensor, count: int) -> Leading:
    """The leading part of mixtures M [k, d_out, d_in] themselves, by their smaller side."""
    if mixtures.shape[2] <= mixtures.shape[1]:
        right = _strongest(mixtures.mT @ mixtures, count)
    else:
        left = _strongest(mixtures @ mixtures.mT, count)
        right = torch.linalg.qr(mixtures.mT @ left).Q
    return _applied(right, mixtures @ right)


def _strongest(squares: Tensor, count: int) -> Tensor:
    """The eigenvectors of the `count` largest eigenvalues, the largest first."""
    vectors: Tensor = torch.linalg.eigh(squares).eigenvectors
    return vectors[..., -count:].flip(-1)


def _applied(right: Tensor, image: Tensor) -> Leading:
    sizes = image.square().sum(-2).sqrt()
    largest = sizes.amax(-1, keepdim=True)
    return Leading(right, image, torch.where(sizes > RESOLVED * largest, sizes, 0.0))


def _square_root(gram: Tensor) -> Tensor:
    """Some F with F F^T = gram [k, q, q]; a gram that is singular beyond rounding is fine."""
    trace = torch.diagonal(gram, dim1=-2, dim2=-1).sum(-1)
    shift = (SHIFT * trace).clamp_min(torch.finfo(gram.dtype).tiny)
    unit = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(gram + shift[:, None, None] * unit)
    if bool(failed.any()):
        values, vectors = torch.linalg.eigh(gram[failed > 0])
        factor[failed > 0] = vectors * values.clamp_min(0.0).sqrt()[:, None, :]
    return factor


TOGETHER = 512
"""Clients settled at a time."""


def receive(leading: Leading, which: Tensor, held: Layer) -> tuple[Tensor, Tensor]:
    """Cut mixtures to their receivers' ranks, in the gauge nearest what each holds.

    Args:
        leading: Of k mixtures.
        which: The mixture each of c clients receives [c].
        held: Those clients' own factors, ranks and scales.

    Returns:
        New A [c, R, d_in] and B [c, d_out, R] in the dtype held, zero beyond each rank.
    """
    new_a, new_b = torch.zeros_like(held.a), torch.zeros_like(held.b)
    resolved = (leading.sizes > 0).long().cumprod(1).sum(1)[which]
    for rank in torch.unique(held.ranks).tolist():
        whole = (held.ranks == rank) & (resolved >= rank)
        if not bool(whole.any()):
            continue  # the mixture may not even have so many directions
        for clients in torch.split(torch.nonzero(whole).flatten(), TOGETHER):
            part = Leading(*(value[which[clients], ..., :rank] for value in leading))
            a, b = _nearest_gauges(part, held.a[clients, :rank].to(torch.float64))
            scale = held.scales[clients].to(b)[:, None, None]
            new_a[clients, :rank] = a.to(new_a.dtype)
            new_b[clients, :, :rank] = (b / scale).to(new_b.dtype)
    for k in torch.nonzero(resolved < held.ranks).flatten().tolist():
        rank = int(held.ranks[k])
        own = held.a[k, :rank].to(torch.float64)
        u, s, v = _factors(leading, int(which[k]), rank)
        a, b = nearest_gauge(u, s, v, own)
        new_a[k, :rank] = a.to(new_a.dtype)
        new_b[k, :, :rank] = (b / held.scales[k]).to(new_b.dtype)
    return new_a, new_b


def _nearest_gauges(part: Leading, own: Tensor) -> tuple[Tensor, Tensor]:
    """`nearest_gauge` of c clients whose mixtures have all their dimensions.

    Args:
        part: Cut to the clients' rank r, one mixture for each client.
        own: What they hold [c, r, d_in].
    """
    gauge, inverse = turned_into(part.right, own, part.sizes[:, 0])
    return gauge @ part.right.mT, part.image @ inverse


def _factors(leading: Leading, row: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """U, s and V of one mixture, filled up with zeros to `rank` columns."""
    right, image, sizes = (value[row, ..., :rank] for value in leading)
    short = rank - sizes.shape[0]
    right, image, sizes = (pad(x, (0, short)) for x in (right, image, sizes))
    return (
        torch.where(sizes > 0, image / sizes.clamp_min(torch.finfo(sizes.dtype).tiny), 0.0),
        sizes,
        right,
    )
