"""Do two series move together: planted ones do, unrelated ones do not."""

import numpy as np
import pytest

from atlas.memory.training.grokking.together import lagged_correlations, moves_together


def drawn(seed):
    return np.random.default_rng(seed)


def walk(changes):
    return np.concatenate([[0.0], np.cumsum(changes)])


@pytest.mark.parametrize("lag", [-3, 0, 2])
def test_a_planted_lag_is_found(lag):
    moves = drawn(0).standard_normal(140)
    noise = drawn(1).standard_normal(120)
    one, two = moves[10:130], moves[10 - lag : 130 - lag] + 0.5 * noise
    found = moves_together(walk(one), walk(two), drawn(2), names=("retrieval", "arithmetic"))
    assert found.lag == lag
    assert found.correlation > 0.8
    assert found.p == 0.001
    words = {-3: ", retrieval after arithmetic", 0: " (", 2: ", arithmetic after retrieval"}
    assert f"move together{words[lag]}" in found.verdict


def test_correlations_by_explicit_sums():
    one, two = drawn(3).standard_normal(31), drawn(4).standard_normal(31)
    found = lagged_correlations(one, two, 4)
    for lag in range(-4, 5):
        pairs = [(one[t], two[t + lag]) for t in range(31) if 0 <= t + lag < 31]
        wanted = np.corrcoef(np.array(pairs).T)[0, 1]
        assert found[lag + 4] == pytest.approx(wanted, abs=1e-12)


def smooth(seed, n=121):
    """A random walk with changes that lean on each other, as learning curves have."""
    noise = drawn(seed).standard_normal(n + 30)
    return walk(np.convolve(noise, np.ones(6) / 6, "valid")[:n])


def test_unrelated_series_seldom_move_together():
    ps = [moves_together(smooth(2 * i), smooth(2 * i + 1), drawn(i)).p for i in range(60)]
    assert sum(p <= 0.05 for p in ps) <= 9  # 3 expected; blocks keep it near there
    assert max(ps) > 0.6


def test_two_rises_alone_are_no_sign_and_opposites_are_told():
    t = np.linspace(0, 1, 100)
    early = 1 / (1 + np.exp(-40 * (t - 0.25))) + 0.01 * drawn(5).standard_normal(100)
    late = 1 / (1 + np.exp(-40 * (t - 0.75))) + 0.01 * drawn(6).standard_normal(100)
    assert "no sign" in moves_together(early, late, drawn(7)).verdict
    x = drawn(8).standard_normal(80)
    against = moves_together(walk(x), walk(-x), drawn(9))
    assert "move against each other" in against.verdict
    assert against.correlation == pytest.approx(-1)


def test_the_same_draws_give_the_same_answer():
    one, two = smooth(1), smooth(2)
    assert moves_together(one, two, drawn(0)) == moves_together(one, two, drawn(0))


def test_what_cannot_be_told():
    found = moves_together(list(range(5)), list(range(5)), drawn(0))
    assert (found.p, found.verdict) == (None, "too few points to tell: 5 of 21")
    still = moves_together(smooth(0, 40), [0.5] * 41, drawn(0), names=("words", "sums"))
    assert still.verdict == "sums does not move, so nothing can be told"
    gaps = smooth(0, 40)
    gaps[::2] = np.nan
    assert moves_together(gaps, smooth(1, 40), drawn(0)).p is None
    with pytest.raises(ValueError, match="equal length"):
        moves_together([1.0], [1.0, 2.0], drawn(0))
