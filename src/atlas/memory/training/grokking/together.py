"""Do two series move together: language and arithmetic, say, learned by one model.

Two curves that both rise always look alike. What is compared is therefore their changes, at a few
lags, and chance is what is found when the changes of one are put in another order. Neighbouring
changes lean on each other, so that they are moved in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

LEAST = 20
"""Changes that it takes."""
ORDERS = 999
"""Other orders that chance is found from."""
SURE = 0.05
"""The largest p at which chance is ruled out."""


@dataclass(frozen=True)
class Together:
    """How two series move.

    Attributes:
        lag: By how many points the second follows the first, where they agree most; negative
            where it leads.
        correlation: Of their changes at that lag.
        p: Share of orders that agree as much at any lag, this one included.
        verdict: In words.
    """

    lag: int | None
    correlation: float | None
    p: float | None
    verdict: str


def moves_together(
    first: Sequence[float],
    second: Sequence[float],
    draw: np.random.Generator,
    *,
    names: tuple[str, str] = ("the first", "the second"),
    most: int | None = None,
) -> Together:
    """Lagged correlation of the changes of two series, with a permutation test.

    Args:
        first: Points measured at the same steps as `second`.
        second: The other series.
        draw: For the other orders.
        names: What the verdict calls them.
        most: The largest lag looked at; a twentieth of the points if None.

    Raises:
        ValueError: The series are of unequal length.
    """
    if len(first) != len(second):
        raise ValueError("the two series must be of equal length")
    one, two = np.diff(np.asarray(first, float)), np.diff(np.asarray(second, float))
    known = np.isfinite(one) & np.isfinite(two)
    one, two = one[known], two[known]
    n = len(one)
    if n < LEAST:
        return Together(None, None, None, f"too few points to tell: {n + 1} of {LEAST + 1}")
    for name, changes in zip(names, (one, two), strict=True):
        if not np.ptp(changes) > 0:
            return Together(None, None, None, f"{name} does not move, so nothing can be told")
    most = max(1, n // 20) if most is None else most
    found = lagged_correlations(one, two, most)
    best = int(np.abs(found).argmax())
    size = abs(float(found[best]))
    block = _block(one, two)
    orders = np.stack([_shuffled(two, block, draw) for _ in range(ORDERS)])
    by_chance = np.abs(lagged_correlations(one, orders, most)).max(axis=-1)
    p = (1 + int((by_chance >= size).sum())) / (1 + ORDERS)
    lag, correlation = best - most, float(found[best])
    return Together(lag, correlation, p, _words(lag, correlation, p, names))


def lagged_correlations(one: Values, two: Values, most: int) -> Values:
    """Of one[t] with two[t + lag], for lags -most to most, over the points that both have.

    Args:
        one: A series [n].
        two: One or more [..., n].
        most: The largest lag.

    Returns:
        [..., 2 most + 1].
    """
    n = len(one)
    pairs = (
        (one[max(0, -lag) : n - max(0, lag)], two[..., max(0, lag) : n - max(0, -lag)])
        for lag in range(-most, most + 1)
    )
    return np.stack([_correlation(x, y) for x, y in pairs], axis=-1)


def _correlation(x: Values, y: Values) -> Values:
    x, y = x - x.mean(), y - y.mean(-1, keepdims=True)
    bottom = np.sqrt((x @ x) * (y * y).sum(-1))
    found: Values = np.divide(y @ x, bottom, out=np.zeros_like(bottom), where=bottom > 0)
    return found


def _block(one: Values, two: Values) -> int:
    """Changes that stay together: twice as far as either series remembers, a fifth at most."""
    n = len(one)
    limit = max(2, n // 5)
    noise = 2 / np.sqrt(n)
    reach = 1
    for x in (one, two):
        for lag in range(1, limit):
            if _correlation(x[:-lag], x[lag:]) < noise:
                break
            reach = max(reach, lag + 1)
    return min(limit, 2 * reach)


def _shuffled(x: Values, block: int, draw: np.random.Generator) -> Values:
    """Blocks of a series, cut at a random place of the circle, in another order."""
    turned = np.roll(x, int(draw.integers(len(x))))
    parts = [turned[start : start + block] for start in range(0, len(x), block)]
    return np.concatenate([parts[i] for i in draw.permutation(len(parts))])


def _words(lag: int, correlation: float, p: float, names: tuple[str, str]) -> str:
    one, two = names
    told = f"(correlation of changes {correlation:+.2f} at lag {lag}, p = {p:.3f})"
    if p > SURE:
        return f"no sign that {one} and {two} move together {told}"
    way = "move together" if correlation > 0 else "move against each other"
    if lag == 0:
        return f"{one} and {two} {way} {told}"
    leader, follower = (one, two) if lag > 0 else (two, one)
    return f"{one} and {two} {way}, {follower} after {leader} {told}"
