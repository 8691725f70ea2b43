"""A line of numbers as a line of letters."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
WIDEST = 24
"""Letters; of more numbers, evenly spaced ones are shown, the last among them."""


def sparkline(values: Sequence[float], span: float = 0.0) -> str:
    """Each number as a bar between the least and the most of them.

    Args:
        values: In order; none gives an empty text.
        span: What the scale covers at least, so that little change looks like little.
    """
    if len(values) > WIDEST:
        step = (len(values) - 1) / (WIDEST - 1)
        values = [values[round(n * step)] for n in range(WIDEST)]
    if not values:
        return ""
    low, high = min(values), max(values)
    low -= max(0.0, span - (high - low)) / 2
    room = max(high - low, span) or 1.0
    return "".join(BARS[min(7, int(8 * (value - low) / room))] for value in values)
