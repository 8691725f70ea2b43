"""How alike representations and gradients are: centred Gram matrices, linear CKA, lengths.

Linear CKA (Kornblith et al. 2019) of features X [n, p] and Y [n, q] of the same n texts is the
cosine of their centred Gram matrices, <XX', YY'> / (|XX'| |YY'|). It does not mind the widths, nor
rotations of the features, nor their scale. A Gram matrix is symmetric, so its upper triangle says
all of it; with entries off the diagonal times sqrt(2), products of triangles are those of matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.ops.sketch import FLAT


def centred(rows: Tensor) -> Tensor:
    """Rows [n, d] less their mean, in float64; rows that are all alike become zeros."""
    exact = rows.to(torch.float64)
    found = exact - exact.mean(0)
    return torch.zeros_like(found) if found.norm() <= FLAT * exact.norm() else found


def gram_triangle(features: Tensor) -> Tensor:
    """The centred Gram matrix of features [n, p] as a vector of length one [n (n + 1) / 2].

    The dot product of two such vectors is the linear CKA of their features. Features that are the
    same for every text have no differences to compare: their vector is zero.
    """
    if features.dim() != 2 or len(features) < 2:
        raise ValueError(f"features are [n, p] with n >= 2, not {tuple(features.shape)}")
    rows = centred(features)
    gram = rows @ rows.T
    row, column = torch.triu_indices(len(gram), len(gram), device=gram.device)
    values = gram[row, column] * torch.where(row == column, 1.0, 2.0).to(gram).sqrt()
    length = values.norm()
    return values / length if bool(length > 0) else values


def linear_cka(one: Tensor, two: Tensor) -> float:
    """Linear CKA of features [n, p] and [n, q] of the same n texts, 0 to 1."""
    return float(gram_triangle(one) @ gram_triangle(two))


def shortened(values: Tensor, most: float) -> tuple[Tensor, float]:
    """A vector scaled to length `most` if it is longer, and its length before."""
    length = float(values.to(torch.float64).norm())
    return (values * (most / length) if length > most else values), length
