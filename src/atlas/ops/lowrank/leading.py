"""The leading part of mixtures of low-rank changes, many mixtures at a time.

A mixture is M = C^T S R: the rows of R [q, d_in] are rows of A, those of C [q, d_out] the columns
of B that go with them, and S is diagonal and says what each counts. Wanted are its strongest right
directions. With S C C^T S = F F^T they are the left directions of R^T F, so one symmetric q x q
matrix, F^T R R^T F, tells them, and no tall matrix is factorised. Squares resolve directions down
to `RESOLVED` of the strongest, which is below the rounding of the float32 numbers that adapters are
kept in. M itself is then applied to the directions, so that what is kept of it is exact for them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

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
