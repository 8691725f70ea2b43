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


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
