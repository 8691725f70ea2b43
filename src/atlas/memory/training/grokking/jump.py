"""Does a series jump, and where.

A jump is a change of level that is short, large and lasting: in a small part of the series it
makes up most of the whole range, it is far beyond what the series does elsewhere at the same
scale, and the levels before and after it hold. Noise changes no level, a random walk moves as far
elsewhere, and a smooth curve takes much of the series for its range: none of them is a jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Values = NDArray[np.float64]

LEAST = 80
"""Points that it takes; of fewer nothing is said."""
BLOCK, BLOCKS = 5, 20
"""Points whose median is a level, at least, and such blocks of a series, at most."""
SMALLEST = 0.1
"""The least height, of shares such as an accuracy: a few answers more are no jump."""
WIDEST = 0.15
"""Share of the series that a jump may take."""
RANGE = 0.6
"""Share of the whole range that it must make up."""
BEYOND = 10.0
"""How often the usual change, at the same scale elsewhere, it must be."""
EXPLAINED = 0.9
"""Share of the variance beside the jump that two levels must explain."""


@dataclass(frozen=True)
class Jump:
    """A change of level.

    Attributes:
        step: Where the series comes to half-way.
        height: From the level before to the one after; negative where the series falls.
        width: Steps from a tenth to nine tenths of the way.
    """

    step: int
    height: float
    width: int


def find_jump(
    steps: Sequence[int], values: Sequence[float], smallest: float = SMALLEST
) -> Jump | None:
    """The jump of a series, or None.

    Args:
        steps: Of the points, rising.
        values: What was measured, all finite; otherwise nothing is said.
        smallest: A change below counts for nothing, however sudden.

    Raises:
        ValueError: The series are of unequal length.
    """
    if len(steps) != len(values):
        raise ValueError("steps and values must be of equal length")
    x = np.asarray(values, dtype=np.float64)
    n = len(x)
    if n < LEAST or not np.isfinite(x).all():
        return None
    block = max(BLOCK, n // BLOCKS)
    levels = np.median(sliding_window_view(x, block), axis=1)  # of the block that starts there
    span = float(levels.max() - levels.min())
    if span < smallest:
        return None
    changes = [_Change.largest(levels, block, width) for width in _widths(n)]
    large = [change for change in changes if change.size >= max(smallest, RANGE * span)]
    jumps = [change for change in large if change.is_unusual(levels) and change.lasts(x)]
    # The widest has the levels on both sides; of equal ones the first, which is the narrowest.
    return max(jumps, key=lambda change: change.size).described(steps, x) if jumps else None


def _widths(n: int) -> list[int]:
    """Points that a jump may take, the fewest first."""
    found, width = [], 1
    while width <= max(2, int(WIDEST * n)):
        found.append(width)
        width = max(width + 1, int(width * 1.5))
    return found


@dataclass(frozen=True)
class _Change:
    """The largest change from one block's level to another's, `width` points apart.

    Attributes:
        block: Points of a block.
        width: From the last point of the block before to the first of the one after.
        place: Where the block before starts.
        heights: Changes at all places.
    """

    block: int
    width: int
    place: int
    heights: Values

    @classmethod
    def largest(cls, levels: Values, block: int, width: int) -> _Change:
        """Two blocks or more from either end: a level must be seen to be left or reached."""
        apart = block + width - 1
        heights = levels[apart:] - levels[:-apart]
        inner = np.abs(heights[block : len(heights) - block])
        # A sudden step is as large from several places: the middle one has it in its middle.
        same = np.flatnonzero(inner >= (1 - 1e-9) * inner.max())
        return cls(block, width, block + int(same[len(same) // 2]), heights)

    @property
    def height(self) -> float:
        return float(self.heights[self.place])

    @property
    def size(self) -> float:
        return abs(self.height)

    def is_unusual(self, levels: Values) -> bool:
        """Whether it is far beyond changes elsewhere, or what small ones would add up to.

        A wide window occurs only a few times in a series, so its changes elsewhere may be small
        by luck. Those of neighbouring blocks are many; if they were the steps of a random walk,
        a window of more blocks would move by the root of how many it spans.
        """
        small = levels[self.block :] - levels[: -self.block]
        walk = _size(self._elsewhere(small)) * np.sqrt((self.block + self.width) / self.block)
        return bool(self.size >= BEYOND * max(_size(self._elsewhere(self.heights)), walk))

    def _elsewhere(self, changes: Values) -> Values:
        """Those that share no point with this one."""
        return changes[np.abs(np.arange(len(changes)) - self.place) >= 2 * self.block + self.width]

    def lasts(self, x: Values) -> bool:
        """Whether two levels are nearly all that there is beside it."""
        before, after = x[: self.place + self.block], x[self.place + self.block + self.width - 1 :]
        beside = np.concatenate([before, after])
        left = np.concatenate([before - np.median(before), after - np.median(after)])
        return bool(left @ left <= (1 - EXPLAINED) * ((beside - beside.mean()) ** 2).sum())

    def described(self, steps: Sequence[int], x: Values) -> Jump:
        """Where the series goes from one side of half-way to the other, and how fast."""
        first, end = self.place, min(self.place + 2 * self.block + self.width - 1, len(x))
        low = float(np.median(x[first : first + self.block]))
        way = (x[first:end] - low) / self.height
        above = way >= 0.5
        # The cut that puts most points on their side; one stray point moves it little.
        wrong = np.concatenate([[0], np.cumsum(above)]) + np.concatenate(
            [np.cumsum(~above[::-1])[::-1], [0]]
        )
        middle = min(int(wrong.argmin()), len(way) - 1)
        begins = max((i for i in range(middle) if way[i] < 0.1), default=0)
        ends = next((i for i in range(middle, len(way)) if way[i] > 0.9), len(way) - 1)
        span = int(steps[first + ends]) - int(steps[first + begins])
        return Jump(int(steps[first + middle]), self.height, span)


def _size(values: Values) -> float:
    return float(np.sqrt(np.mean(values**2))) if len(values) else 0.0
