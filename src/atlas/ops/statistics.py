"""Paired comparisons of two methods on the same seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def paired_comparison(first: Sequence[float], second: Sequence[float]) -> dict[str, float | None]:
    """How `second` differs from `first`, pair by pair.

    Args:
        first: One value per seed.
        second: The other method on the same seeds, in the same order.

    Returns:
        The mean difference, the p-values of a paired t-test and of Wilcoxon's signed-rank test
        (two-sided), and Cohen's d of the differences. A value that is undefined, as with equal
        differences or fewer than two pairs, is None.
    """
    from scipy import stats  # takes 20 MB, and no run needs it: only studies compare

    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    # Differences that agree to rounding have no spread to test against.
    varied = spread > 1e-12 * max(1.0, float(np.abs(differences).max()))
    moved = bool(np.any(differences != 0)) and len(differences) > 1
    return {
        "difference": float(differences.mean()),
        "t_test_p": _number(stats.ttest_1samp(differences, 0.0).pvalue) if varied else None,
        "wilcoxon_p": _number(stats.wilcoxon(differences).pvalue) if moved else None,
        "cohens_d": float(differences.mean()) / spread if varied else None,
    }


def lead_of(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[float, float]:
    """By how much `first` leads `second` on the same examples, and that lead's standard error."""
    differences = first - second
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    return float(differences.mean()), spread / len(differences) ** 0.5


def share_of_way(
    scores: Sequence[float], starts: Sequence[float], ends: Sequence[float]
) -> tuple[float, float | None]:
    """How much of the way from start to end was gone on average, and that share's standard error.

    The error is the jackknife's: it holds for a ratio of means, in which a seed moves both.

    Args:
        scores: One value per seed.
        starts: Where each seed began.
        ends: Where each could have ended; on average not where it began.

    Returns:
        The share and its error; the latter is None for one seed, or where the way vanishes
        without some seed.
    """
    gone = np.asarray(scores, dtype=np.float64) - np.asarray(starts, dtype=np.float64)
    way = np.asarray(ends, dtype=np.float64) - np.asarray(starts, dtype=np.float64)
    share, count = float(gone.sum() / way.sum()), len(gone)
    rest = way.sum() - way
    if count < 2 or not rest.all():  # noqa: PLR2004 - one seed has no spread
        return share, None
    without = (gone.sum() - gone) / rest
    error = math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
    return share, error


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
