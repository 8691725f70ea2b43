"""Directions in which two models say the same of the same texts.

Rows of `features` are texts, columns the numbers of one model's layer; rows of two models are
paired. All features are centred, in float64. A basis has orthonormal rows [r, d], and what it makes
of features x is x @ basis^T [n, r], a text's coordinates.

The reference's basis is its leading principal directions. Another model's is found among its own
leading directions, so that its coordinates of paired texts match the reference's: by orthogonal
Procrustes (`procrustes_basis`), or by ridge CCA (`cca_basis`), which counts directions by how well
they agree instead of by how large they are. Layers of two models differ in scale, so coordinates
are compared at equal size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.ops.lowrank.gauge import polar

RESOLVED = 1e-6
"""Directions below this share of the strongest count as none: features come from float32."""

LEAST = 1e-300
"""A length of zero is divided by this."""


def centred(features: Tensor) -> Tensor:
    """Features [n, d] less their mean, float64."""
    whole = features.to(torch.float64)
    return whole - whole.mean(0)


def principal_directions(features: Tensor, count: int) -> Tensor:
    """The leading directions of centred features [n, d] as orthonormal rows, the strongest first.

    An entry of largest size in each is positive, so that equal features give equal signs. There
    are at most `count` and no more than the features resolve.
    """
    _, sizes, rows = torch.linalg.svd(features, full_matrices=False)
    found = rows[: min(count, int((sizes > RESOLVED * sizes[:1]).sum()))]
    largest = found.gather(1, found.abs().argmax(1, keepdim=True))
    signed: Tensor = found * torch.where(largest < 0, -1.0, 1.0)
    return signed


def supported_rank(features: Tensor) -> int:
    """How many directions centred features resolve."""
    sizes = torch.linalg.svdvals(features)
    return int((sizes > RESOLVED * sizes[:1]).sum())


def procrustes_basis(leading: Tensor, features: Tensor, target: Tensor) -> Tensor:
    """The basis within the span of `leading` whose coordinates lie along the reference's.

    Of all orthonormal rows in that span it is the one with the largest sum over texts of the
    products of paired coordinates.

    Args:
        leading: Orthonormal directions to choose from [k, d].
        features: Centred [n, d].
        target: The reference's coordinates of the same texts [n, r], r <= k.

    Returns:
        [r, d].
    """
    return polar(target.mT @ (features @ leading.mT)) @ leading


def cca_basis(leading: Tensor, features: Tensor, target: Tensor, ridge: float) -> Tensor:
    """As `procrustes_basis`, found between whitened coordinates.

    Both sides are whitened, turned onto each other and given the reference's covariance; the basis
    is the one nearest to that map.

    Args:
        leading: Orthonormal directions to choose from [k, d].
        features: Centred [n, d].
        target: The reference's coordinates of the same texts [n, r], r <= k.
        ridge: Share of the mean variance that is added to each side's.
    """
    here = features @ leading.mT
    own, theirs = (_ridged(side.mT @ side, ridge) for side in (here, target))
    whiten = _power(own, -0.5)
    turn = polar(_power(theirs, -0.5) @ (target.mT @ here) @ whiten)
    return polar(_power(theirs, 0.5) @ turn @ whiten) @ leading


def ridge_map(features: Tensor, target: Tensor, ridge: float) -> Tensor:
    """The map T [d, d] with features @ T nearest to a target of the same width, not centred.

    Args:
        features: [n, d].
        target: Of the same rows [n, d].
        ridge: How strongly T is pulled to leaving features as they are, as a share of their mean
            square: directions that the rows do not show stay untouched.
    """
    here, wanted = features.to(torch.float64), target.to(torch.float64)
    square = here.mT @ here
    pulled = _ridged(square, ridge)
    found: Tensor = torch.linalg.solve(pulled, here.mT @ wanted + (pulled - square))
    return found


def _ridged(square: Tensor, ridge: float) -> Tensor:
    mean = square.diagonal().mean()
    return square + ridge * mean * torch.eye(len(square), dtype=square.dtype, device=square.device)


def _power(square: Tensor, exponent: float) -> Tensor:
    values, vectors = torch.linalg.eigh(square)
    # Without any ridge a direction may be lost in rounding.
    values = values.clamp_min(RESOLVED**2 * float(values[-1]))
    power: Tensor = (vectors * values.pow(exponent)) @ vectors.mT
    return power


def drawn_like(features: Tensor, noise: Tensor) -> Tensor:
    """Rows drawn from the mean and covariance of features alone: what they were of is lost.

    Args:
        features: [n, d].
        noise: Standard normal [m, n].

    Returns:
        [m, d].
    """
    spread: Tensor = noise @ centred(features) / max(1, len(features) - 1) ** 0.5
    return features.to(torch.float64).mean(0) + spread


def relative_size(coordinates: Tensor, target: Tensor) -> float:
    """How large coordinates are, in units of the reference's."""
    return float(coordinates.norm() / target.norm().clamp_min(LEAST))


def paired_residual(coordinates: Tensor, target: Tensor) -> float:
    """How far paired coordinates [n, r] are from the reference's at equal size, relative to that.

    0 if they agree, about 1.4 if they have nothing to do with each other, 2 if they are opposite.
    """
    scaled = coordinates / max(relative_size(coordinates, target), LEAST)
    return float((scaled - target).norm() / target.norm().clamp_min(LEAST))


def principal_angles(one: Tensor, two: Tensor) -> Tensor:
    """Angles between the column spans of two matrices [n, r], rising, in degrees.

    They do not change if either is turned: they tell what two sets of coordinates could have in
    common, whatever the basis.
    """
    spans = [torch.linalg.qr(side.to(torch.float64)).Q for side in (one, two)]
    cosines = torch.linalg.svdvals(spans[0].mT @ spans[1]).clamp(0.0, 1.0)
    return torch.rad2deg(torch.acos(cosines))
