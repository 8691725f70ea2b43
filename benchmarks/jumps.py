"""Counts what the jump detector says of curves without a jump and of planted ones.

python benchmarks/jumps.py [curves of each kind]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from atlas.memory.training.grokking.jump import find_jump

Draw = np.random.Generator
Values = NDArray[np.float64]
LENGTHS = (80, 100, 150, 300)


def noise(draw: Draw, n: int) -> Values:
    """A level and independent noise about it."""
    return draw.uniform(0, 1) + draw.uniform(0.01, 0.5) * draw.standard_normal(n)


def correlated_noise(draw: Draw, n: int) -> Values:
    """Noise that remembers a few points."""
    keep, x = draw.uniform(0.3, 0.95), np.zeros(n)
    for i in range(1, n):
        x[i] = keep * x[i - 1] + draw.standard_normal()
    return x


def random_walk(draw: Draw, n: int) -> Values:
    """A walk of modest steps."""
    return np.cumsum(draw.uniform(0.002, 0.05) * draw.standard_normal(n))


def straight(draw: Draw, n: int) -> Values:
    """A straight line, up or down."""
    return draw.uniform(-1, 1) * np.linspace(0, 1, n) + slight(draw, n)


def saturation(draw: Draw, n: int) -> Values:
    """Fast first, then ever slower."""
    t = np.linspace(0, 1, n)
    return draw.choice([-1, 1]) * (1 - np.exp(-t / draw.uniform(0.01, 1))) + slight(draw, n)


def slow_sigmoid(draw: Draw, n: int) -> Values:
    """From a tenth to nine tenths of its rise takes 40 % of the series or more."""
    t, width = np.linspace(0, 1, n), draw.uniform(0.4, 1.2)
    rise = 1 / (1 + np.exp(-(t - draw.uniform(0.2, 0.8)) * 4.394 / width))
    return draw.choice([-1, 1]) * rise + slight(draw, n)


def power_law(draw: Draw, n: int) -> Values:
    """A root or a power of time."""
    return np.linspace(0, 1, n) ** draw.uniform(0.2, 4) + slight(draw, n)


def single_spike(draw: Draw, n: int) -> Values:
    """One point that stands out."""
    x = slight(draw, n)
    x[draw.integers(n)] += 1
    return x


def slight(draw: Draw, n: int) -> Values:
    """Little noise or none."""
    return draw.choice([0.0, 0.01, 0.03, 0.1]) * draw.standard_normal(n)


CURVES = (
    noise, correlated_noise, random_walk, straight, saturation, slow_sigmoid, power_law,
    single_spike,
)  # fmt: skip


def planted(draw: Draw, n: int, spread: float) -> tuple[Values, int, float]:
    """A level, a rise over up to 8 % of the points, another level; the place of its middle."""
    place = int(draw.uniform(0.2, 0.8) * n)
    width = max(0.08 * n * draw.uniform(0, 1), 1e-3)
    turn = np.clip((np.arange(n) - place + 0.5) * 4.394 / width, -50, 50)
    height = draw.choice([-1, 1]) * draw.uniform(0.6, 1)
    return height / (1 + np.exp(-turn)) + spread * draw.standard_normal(n), place, height


def count_false(curve: Callable[[Draw, int], Values], count: int) -> int:
    """How many of so many curves are said to jump."""
    draw = np.random.default_rng([1, CURVES.index(curve)])
    found = 0
    for number in range(count):
        n = LENGTHS[number % len(LENGTHS)]
        found += find_jump(range(n), curve(draw, n)) is not None
    return found


def count_found(spread: float, count: int) -> tuple[int, int, int | None]:
    """Of planted jumps: how many are found, how many within ten points, the furthest off."""
    draw = np.random.default_rng(2)
    off = []
    for number in range(count):
        n = LENGTHS[number % len(LENGTHS)]
        values, place, _ = planted(draw, n, spread)
        jump = find_jump(range(n), values)
        if jump is not None:
            off.append(abs(jump.step - place))
    return len(off), sum(o <= 10 for o in off), max(off, default=None)


def main() -> None:
    """Print both counts."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"curves without a jump, {count} of each kind, of 80 to 300 points: said to jump")
    for curve in CURVES:
        print(f"  {curve.__name__.replace('_', ' '):18}{count_false(curve, count):6}")
    print(f"planted jumps of height 0.6 to 1, {count} each: found, within ten points, furthest off")
    for spread in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1):
        found, near, furthest = count_found(spread, count)
        print(f"  noise {spread:4.2f}{found:12}{near:6}{furthest:6}")


if __name__ == "__main__":
    main()
