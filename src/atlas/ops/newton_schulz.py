"""Newton-Schulz: the nearest semi-orthogonal matrix, by products alone.

A matrix with singular values s becomes one with the same singular vectors and values near one.
The coefficients are those of Muon (Jordan et al., 2024): they trade a limit of exactly one for
speed, so that after five steps every value that was not tiny lies between about 0.68 and 1.13.
"""

from __future__ import annotations

from torch import Tensor
from torch.linalg import matrix_norm

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SMALLEST_NORM = 1e-7
"""What a zero matrix is divided by; it stays zero."""


def newton_schulz(x: Tensor, steps: int = 5) -> Tensor:
    """X <- aX + b(XX^T)X + c(XX^T)^2 X, `steps` times, from X / ||X||_F.

    Args:
        x: Matrices [..., rows, columns].
        steps: How often; one sends singular values s to a*s + b*s^3 + c*s^5 once.

    Returns:
        The same shape; the singular vectors of `x`, the singular values near one.
    """
    a, b, c = COEFFICIENTS
    # The polynomial commutes with transposition, and the smaller Gram matrix is cheaper.
    tall = x.shape[-2] > x.shape[-1]
    y = x.mT if tall else x
    norm: Tensor = matrix_norm(y, keepdim=True)
    y = y / norm.clamp_min(SMALLEST_NORM)
    for _ in range(steps):
        gram = y @ y.mT
        y = a * y + (b * gram + c * (gram @ gram)) @ y
    return y.mT if tall else y
