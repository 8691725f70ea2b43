"""Scores of predicted labels and texts, and paired comparisons of two methods on the same seeds."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]


def confusion(truth: Labels, predicted: Labels, classes: int) -> NDArray[np.float64]:
    """Counts [true class, predicted class]."""
    table = np.zeros((classes, classes), dtype=np.float64)
    np.add.at(table, (truth, predicted), 1.0)
    return table


def accuracy(table: NDArray[np.float64]) -> float:
    """Share of right answers."""
    return float(np.trace(table) / table.sum())


def balanced_accuracy(table: NDArray[np.float64]) -> float:
    """Mean recall over the classes that occur."""
    present = table.sum(1) > 0
    return float((np.diag(table)[present] / table.sum(1)[present]).mean())


def auc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """How often one of `higher` is above one of `lower`, ties counting half: the area under ROC."""
    if not len(higher) or not len(lower):
        raise ValueError("an AUC needs values on both sides")
    gaps = np.asarray(higher, dtype=np.float64)[:, None] - np.asarray(lower, dtype=np.float64)
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2)


def f1(table: NDArray[np.float64]) -> float:
    """F1 of class 1 for two classes, the mean over classes for more."""
    wrong = table.sum(0) + table.sum(1)
    scores = np.divide(2 * np.diag(table), wrong, out=np.zeros(len(table)), where=wrong > 0)
    return float(scores[1] if len(table) == 2 else scores.mean())


def matthews(table: NDArray[np.float64]) -> float:
    """Matthews correlation (its multi-class form); zero where it is undefined."""
    true, guessed, total = table.sum(1), table.sum(0), table.sum()
    covariance = np.trace(table) * total - true @ guessed
    spread = (total**2 - guessed @ guessed) * (total**2 - true @ true)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def example_weights(truth: Labels, metric: str) -> NDArray[np.float64]:
    """What a right answer to each example counts: alike for accuracy, else by class.

    Weighted right answers average to accuracy, or to balanced accuracy, which stands in for the
    other metrics that mind rare classes.
    """
    if metric == "accuracy":
        return np.ones(len(truth))
    counts = np.bincount(truth)
    weights: NDArray[np.float64] = len(truth) / (np.count_nonzero(counts) * counts[truth])
    return weights


CLASS_METRICS: dict[str, Callable[[NDArray[np.float64]], float]] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "f1": f1,
    "matthews": matthews,
}


def class_scores(truth: Labels, predicted: Labels, classes: int) -> dict[str, float]:
    """All classification metrics of one set of predictions."""
    table = confusion(truth, predicted, classes)
    return {name: metric(table) for name, metric in CLASS_METRICS.items()}


def normalise_answer(text: str) -> list[str]:
    """Words of an answer, without case, punctuation and articles."""
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return [word for word in bare.split() if word not in {"a", "an", "the"}]


def read_number(text: str) -> Decimal | None:
    """The number that an answer is, whatever its separators and currency; None if it is none."""
    bare = text.strip().lstrip("$€£").rstrip("%").removesuffix(".")
    if re.fullmatch(r"[-+]?(?=\.?\d)(\d*|\d{1,3}(,\d{3})+)(\.\d+)?", bare.strip()) is None:
        return None
    return Decimal(bare.replace(",", ""))


def _same_number(truth: str, predicted: str) -> bool | None:
    """Whether two numbers are equal, 18.0 and 18 for one; None if either answer is no number."""
    want, got = read_number(truth), read_number(predicted)
    return None if want is None or got is None else want == got


def exact_match(truth: str, predicted: str) -> float:
    """One if both answers are the same number or have the same words."""
    same = _same_number(truth, predicted)
    return float(normalise_answer(truth) == normalise_answer(predicted) if same is None else same)


def token_f1(truth: str, predicted: str) -> float:
    """F1 of the words both answers share; numbers are equal or not."""
    same = _same_number(truth, predicted)
    if same is not None:
        return float(same)
    want, got = normalise_answer(truth), normalise_answer(predicted)
    if not want or not got:
        return float(want == got)
    shared = sum((Counter(want) & Counter(got)).values())
    return 2 * shared / (len(want) + len(got))


TEXT_METRICS: dict[str, Callable[[str, str], float]] = {
    "exact_match": exact_match,
    "token_f1": token_f1,
}


def text_scores(truth: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """All text metrics, averaged; `accuracy` is the exact match."""
    scores = {
        name: float(np.mean([metric(t, p) for t, p in zip(truth, predicted, strict=True)]))
        for name, metric in TEXT_METRICS.items()
    }
    return {**scores, "accuracy": scores["exact_match"]}


def scored_part(answer: str, marker: str) -> str:
    """The part of a free answer that counts: what follows the last marker, if there is one.

    Numbers lose their thousands separators, so that 1,200 equals 1200.
    """
    tail = answer.rsplit(marker, 1)[-1] if marker and marker in answer else answer
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", tail).strip()


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
