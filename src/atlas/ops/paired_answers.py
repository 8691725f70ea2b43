"""Whether two ways of answering the same questions differ by more than chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mcnemar(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> dict[str, float | int]:
    """Exact test of whether two answer the same questions equally well (McNemar 1947).

    Args:
        first: Whether one has each question right [N].
        second: Whether the other has [N].

    Returns:
        difference: First minus second, of the shares; first_only, second_only: questions that one
        of them alone has right; p: two-sided, of those splitting so unevenly by chance.
    """
    from scipy.stats import binomtest  # late: it is slow to import

    one = int((first & ~second).sum())
    two = int((second & ~first).sum())
    p = float(binomtest(one, one + two).pvalue) if one + two else 1.0
    gap = float(first.mean() - second.mean()) if len(first) else 0.0
    return {"difference": gap, "first_only": one, "second_only": two, "p": p}


def resampled_interval(
    values: NDArray[np.float64],
    groups: NDArray[np.int64],
    draw: np.random.Generator,
    count: int = 2000,
) -> tuple[float, float]:
    """The middle 95 % of the mean when whole groups are drawn again (percentile bootstrap).

    Values of one group lean on each other, so groups are what is drawn.

    Args:
        values: [N].
        groups: The group of each [N].
        draw: Decides which groups.
        count: How often.
    """
    numbers, place = np.unique(groups, return_inverse=True)
    sums = np.bincount(place, weights=values, minlength=len(numbers))
    sizes = np.bincount(place, minlength=len(numbers))
    picked = draw.integers(len(numbers), size=(count, len(numbers)))
    means = sums[picked].sum(1) / sizes[picked].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
