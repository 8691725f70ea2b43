"""Jumps: planted ones are found where they are, and nothing else is one."""

import numpy as np
import pytest

from atlas.memory.training.grokking import jump as module
from atlas.memory.training.grokking.jump import LEAST, find_jump

LENGTHS = (80, 100, 150, 300)


def noise(draw, n):
    return draw.uniform(0, 1) + draw.uniform(0.01, 0.5) * draw.standard_normal(n)


def correlated_noise(draw, n):
    keep, x = draw.uniform(0.3, 0.95), np.zeros(n)
    for i in range(1, n):
        x[i] = keep * x[i - 1] + draw.standard_normal()
    return x


def random_walk(draw, n):
    return np.cumsum(draw.uniform(0.002, 0.05) * draw.standard_normal(n))


def straight(draw, n):
    return draw.uniform(-1, 1) * np.linspace(0, 1, n) + slight(draw, n)


def saturation(draw, n):
    t = np.linspace(0, 1, n)
    return draw.choice([-1, 1]) * (1 - np.exp(-t / draw.uniform(0.01, 1))) + slight(draw, n)


def slow_sigmoid(draw, n):
    """Nine tenths of its rise take from 40 % of the series to more than all of it."""
    t, width = np.linspace(0, 1, n), draw.uniform(0.4, 1.2)
    rise = 1 / (1 + np.exp(-(t - draw.uniform(0.2, 0.8)) * 4.394 / width))
    return draw.choice([-1, 1]) * rise + slight(draw, n)


def power_law(draw, n):
    return np.linspace(0, 1, n) ** draw.uniform(0.2, 4) + slight(draw, n)


def single_spike(draw, n):
    x = slight(draw, n)
    x[draw.integers(n)] += 1
    return x


def slight(draw, n):
    return draw.choice([0.0, 0.01, 0.03, 0.1]) * draw.standard_normal(n)


CURVES = (
    noise, correlated_noise, random_walk, straight, saturation, slow_sigmoid, power_law,
    single_spike,
)  # fmt: skip


@pytest.mark.parametrize("curve", CURVES)
def test_nothing_jumps_in_a_thousand_curves_of_each_kind(curve):
    draw = np.random.default_rng([1, CURVES.index(curve)])
    for number in range(1000):
        n = LENGTHS[number % len(LENGTHS)]
        assert find_jump(range(n), curve(draw, n)) is None, (number, n)


def planted(draw, n, spread):
    """A level, a rise over up to 8 % of the points, another level; the place of its middle."""
    place = int(draw.uniform(0.2, 0.8) * n)
    width = max(0.08 * n * draw.uniform(0, 1), 1e-3)
    turn = np.clip((np.arange(n) - place + 0.5) * 4.394 / width, -50, 50)
    height = draw.choice([-1, 1]) * draw.uniform(0.6, 1)
    return height / (1 + np.exp(-turn)) + spread * draw.standard_normal(n), place, height


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.04])
def test_planted_jumps_are_found_within_ten_points(n, spread):
    draw = np.random.default_rng(n)
    for _ in range(20):
        values, place, height = planted(draw, n, spread)
        found = find_jump([5 * i for i in range(n)], values)
        assert found is not None
        assert abs(found.step / 5 - place) <= 10
        assert abs(found.height - height) < 0.25 * abs(height)
        assert 0 < found.width <= 5 * 0.2 * n


def passing_rise(draw, n):
    """Up at once, and slowly back to where it was: no level holds."""
    place = int(draw.uniform(0.25, 0.4) * n)
    return np.concatenate([np.zeros(place), np.linspace(1, 0, n - place)])


@pytest.mark.parametrize(
    ("rules", "curve"),
    [
        (["RANGE", "EXPLAINED"], saturation),
        (["BEYOND", "EXPLAINED"], random_walk),
        (["EXPLAINED"], passing_rise),
    ],
)
def test_each_rule_is_needed(monkeypatch, rules, curve):
    def fired():
        draw = np.random.default_rng(5)
        return sum(find_jump(range(300), curve(draw, 300)) is not None for _ in range(300))

    assert fired() == 0
    for rule in rules:
        monkeypatch.setattr(module, rule, 0.0)
    assert fired() > 5


def test_nothing_is_said_of_short_or_broken_series():
    step = [0.0] * 50 + [1.0] * 50
    assert find_jump(range(100), step).step == 50
    assert find_jump(range(LEAST - 1), step[: LEAST - 1]) is None
    assert find_jump(range(100), [float("nan"), *step[1:]]) is None
    assert find_jump(range(100), [0.5] * 100) is None
    few = [0.01 * value for value in step]
    assert find_jump(range(100), few) is None
    assert find_jump(range(100), few, smallest=0.005).step == 50
    with pytest.raises(ValueError, match="equal length"):
        find_jump(range(3), [1.0])
