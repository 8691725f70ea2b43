"""Numbers and names as one would say them."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_NAMED = 6
"""Names that a sentence lists before it counts the rest."""


def counted(count: int, noun: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; of many only the first, and how many more there are."""
    shown = list(names)
    if len(shown) > MOST_NAMED:
        shown = [*shown[: MOST_NAMED - 1], f"{len(shown) - MOST_NAMED + 1} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])) if shown else "nobody"


def points(value: float) -> str:
    """A difference of scores, without its sign: `1 point`, `3.2 points`."""
    text = f"{abs(100 * value):.1f}"
    return f"{text} point{'' if text == '1.0' else 's'}"


def signed(value: float) -> str:
    """A difference of scores with its sign, as tables show it."""
    return f"{100 * value:+.1f}"


def shown_sign(value: float) -> int:
    """1, 0 or -1, by what is left of a difference once it is shown."""
    shown = round(100 * value, 1)
    return (shown > 0) - (shown < 0)


def standard_error(share: float, count: int) -> float:
    """Of a share of right answers, found on so many examples.

    None or all right does not mean that there is no doubt: there half an example counts.
    """
    least = 0.5 / count
    share = min(max(share, least), 1 - least)
    return math.sqrt(share * (1 - share) / count)
