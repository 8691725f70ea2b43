"""Scores of predicted labels and of predicted texts."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

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


def exact_match(truth: str, predicted: str) -> float:
    """One if both answers have the same words."""
    return float(normalise_answer(truth) == normalise_answer(predicted))


def token_f1(truth: str, predicted: str) -> float:
    """F1 of the words both answers share."""
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
