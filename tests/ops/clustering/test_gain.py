"""What members gain by a split: against loops, and on clients that differ by chance or for good."""

from itertools import product as product_of

import numpy as np
import pytest
import scipy

from atlas.ops.clustering.clusters import kmeans_labels
from atlas.ops.clustering.gain import (
    Gain,
    held_out_products,
    part_affinities,
    part_gains,
    split_gain,
    useful_splits,
)
from atlas.ops.clustering.stability import LEVEL

WIDTH, FOLDS = 24, 8


def drawn(means, noise=1.0, seed=0, folds=FOLDS):
    """Folds that add up to the means and noise."""
    draw = np.random.default_rng(seed)
    own = np.asarray(means, dtype=np.float64)
    return own[:, None] / folds + noise * draw.standard_normal((len(own), folds, own.shape[1]))


def naive_gain(folds, found, base):
    """Mean, error and freedom, product by product."""
    n, count, _ = folds.shape
    means, errors, most = [], [], []
    for held, labels, before in zip((1, 0), found, base, strict=True):
        mine = [f for f in range(count) if f % 2 == held]
        theirs = [f for f in range(count) if f % 2 != held]
        total, variance = 0.0, 0.0
        for i in range(n):
            values = []
            for f in mine:
                value = 0.0
                for partition, sign in ((labels, 1.0), (before, -1.0)):
                    others = [j for j in range(n) if j != i and partition[j] == partition[i]]
                    for j in others:
                        half = sum(folds[j, g] for g in theirs)
                        value += sign * float(folds[i, f] @ half) / len(others)
                values.append(value)
            total += sum(values)
            left = [sum(values) - v for v in values]
            scaled = [len(mine) / (len(mine) - 1) * v for v in left]
            centre = sum(scaled) / len(mine)
            variance += (len(mine) - 1) / len(mine) * sum((v - centre) ** 2 for v in scaled)
        means.append(total / n)
        errors.append(variance**0.5 / n)
        most.append(naive_most(folds, mine, theirs, before))
    return sum(means) / 2, sum(errors) / 2, n * (len(mine) - 1), sum(most) / 2


def naive_most(folds, mine, theirs, before):
    """What clients gain from their own other half over the base."""
    total, n = 0.0, len(folds)
    for i in range(n):
        held = sum(folds[i, f] for f in mine)
        halves = [sum(folds[j, g] for g in theirs) for j in range(n)]
        others = [halves[j] for j in range(n) if j != i and before[j] == before[i]]
        total += float(held @ (halves[i] - sum(others) / max(1, len(others))))
    return total / n


@pytest.mark.parametrize(("n", "folds"), [(2, 4), (5, 8), (30, 8)])
def test_gains_are_those_of_loops(n, folds):
    draw = np.random.default_rng(n)
    rows = drawn(draw.standard_normal((n, WIDTH)), folds=folds, seed=n)
    found = tuple(tuple(draw.integers(0, 3, n).tolist()) for _ in range(2))
    base = tuple(tuple(draw.integers(0, 2, n).tolist()) for _ in range(2))
    gain = split_gain(held_out_products(rows), found, base)
    mean, error, freedom, most = naive_gain(rows, found, base)
    assert gain.most == pytest.approx(most, rel=1e-10)
    assert gain.shared == pytest.approx(mean / most if most > 0 else float(mean > 0))
    assert gain.mean == pytest.approx(mean, rel=1e-10)
    assert gain.error == pytest.approx(error, rel=1e-10)
    assert gain.freedom == freedom


def test_what_is_needed_is_students_quantile():
    gain = Gain(1.0, 0.5, 7)
    assert gain.needed(0.01) == pytest.approx(0.5 * scipy.stats.t.ppf(0.99, 7))


def found_in_halves(rows, ks):
    odd, even = rows[:, 1::2].sum(1), rows[:, ::2].sum(1)
    return [(kmeans_labels(even, k, 0), kmeans_labels(odd, k, 0)) for k in ks]


def test_chance_is_rarely_of_use_and_its_gains_cancel():
    ratios, wrong = [], 0
    for seed in range(60):
        rows = drawn(np.zeros((6, WIDTH)), seed=seed)
        found = found_in_halves(rows, [2])
        wrong += useful_splits(rows, found)[0][0]
        together = ((0,) * 6,) * 2
        if min(found[0][0].count(c) for c in (0, 1)) > 1:
            gain = split_gain(held_out_products(rows), found[0], together)
            ratios.append(gain.mean / gain.error)
    assert wrong <= 5, f"a chance of {LEVEL / 2} each"
    assert abs(np.mean(ratios)) < 4 / len(ratios) ** 0.5
    assert 0.5 < np.std(ratios) < 1.3


def test_planted_groups_are_of_use_and_cutting_them_further_is_not():
    truth = np.repeat(np.eye(3, WIDTH), 5, 0) * 30
    for seed in range(5):
        rows = drawn(truth, seed=seed)
        verdicts = [use.useful for use in useful_splits(rows, found_in_halves(rows, range(2, 7)))]
        assert verdicts == [True, True, False, False, False]


def test_who_is_left_alone_loses_what_the_whole_gives():
    """Clients with ways of their own and one common aim: alone nobody gains."""
    aims = 6 * np.eye(1, WIDTH) + 3 * np.eye(5, WIDTH, k=1)
    rows = drawn(aims, noise=0.1)
    alone = (0, 1, 2, 3, 3)
    assert not useful_splits(rows, [(alone, alone)])[0][0]
    losses = part_gains(rows, alone)
    assert all(losses[part] < 0 for part in (0, 1, 2))
    # Without the common aim there is nothing to lose.
    apart = drawn(3 * np.eye(5, WIDTH), noise=0.1)
    assert min(part_gains(apart, (0, 1, 1, 1, 1)).values()) > -0.1


@pytest.mark.parametrize("labels", [(0, 1), (0, 0, 1, 2, 2, 2, 1), tuple(range(9))])
def test_affinities_of_parts_equal_a_loop_over_pairs(labels):
    rows = drawn(np.random.default_rng(5).standard_normal((len(labels), WIDTH)) + 1, 0.1, seed=6)
    odd, even = rows[:, 1::2].sum(1), rows[:, ::2].sum(1)
    members = [[i for i, own in enumerate(labels) if own == part] for part in sorted(set(labels))]

    def product(one, two):
        """Of the mean gradients of two parts, each time of different halves, either way."""
        pairs = [(i, j) for i in one for j in two]
        return sum(odd[i] @ even[j] + even[i] @ odd[j] for i, j in pairs) / (2 * len(pairs))

    found = part_affinities(rows, labels)
    for (a, one), (b, two) in product_of(list(enumerate(members)), repeat=2):
        length = max(0.0, product(one, one)) * max(0.0, product(two, two))
        cosine = product(one, two) / length**0.5 if length else 0.0
        assert found[a, b] == pytest.approx(1.0 if a == b else min(1.0, max(0.0, cosine)))
    assert 0 < found[0, 1] < 1, "neither end is reached, so the numbers tell"


def test_gains_of_parts_equal_a_loop_over_members():
    labels = (0, 0, 1, 2, 2, 2, 1)
    rows = drawn(np.random.default_rng(7).standard_normal((7, WIDTH)), seed=8)
    odd, even = rows[:, 1::2].sum(1), rows[:, ::2].sum(1)
    found = part_gains(rows, labels)
    for part in (0, 1, 2):
        gains = []
        for i in (i for i, own in enumerate(labels) if own == part):
            others = [j for j in range(7) if j != i]
            near = [j for j in others if labels[j] == part]
            for held, rest in ((odd, even), (even, odd)):
                own = np.mean([held[i] @ rest[j] for j in near])
                gains.append(own - np.mean([held[i] @ rest[j] for j in others]))
        assert found[part] == pytest.approx(np.mean(gains))


def test_affinities_of_parts_are_cosines_freed_of_noise():
    one = np.eye(1, WIDTH)[0]
    two = (one + np.eye(1, WIDTH, k=1)[0]) / 2**0.5
    means = np.stack([one] * 12 + [two] * 12 + [-one] * 12) * 40
    labels = (0,) * 12 + (1,) * 12 + (2,) * 12
    found = part_affinities(drawn(means, noise=2.0), labels)
    assert found[0, 1] == pytest.approx(0.5**0.5, abs=0.05)
    assert found[0, 2] == found[1, 2] == 0.0
    assert (np.diag(found) == 1.0).all()
    assert np.array_equal(found, found.T)
    nothing = part_affinities(np.zeros((4, FOLDS, 3)), (0, 0, 1, 1))
    assert np.array_equal(nothing, np.eye(2))
