"""Jumps: planted ones are found where they are, and nothing else is one."""

import numpy as np
import pytest

from atlas.memory.training.grokking import jump as module
from atlas.memory.training.grokking.jump import LEAST, find_jump
from benchmarks.jumps import CURVES, LENGTHS, count_false, planted, random_walk, saturation


@pytest.mark.parametrize("curve", CURVES)
def test_nothing_jumps_in_a_thousand_curves_of_each_kind(curve):
    assert count_false(curve, 1000) == 0


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
