"""Ranks within a budget."""

import itertools
import math

import numpy as np
import pytest
import torch

from atlas.ops.capacity import (
    SOLVERS,
    cluster_complexity,
    cost,
    exhaustive_ranks,
    greedy_ranks,
    layer_importance,
    uniform_ranks,
    worth,
)

CHOICES = (4, 8, 16, 32, 64)


def random_case(seed):
    """Importances, prices and a budget between the floor and everything."""
    draw = np.random.default_rng(seed)
    layers = int(draw.integers(2, 7))
    importance = draw.uniform(0.05, 3.0, layers).tolist()
    units = draw.choice([96.0, 128.0, 192.0, 480.0], layers).tolist()
    least, most = (cost(units, [rank] * layers) for rank in (CHOICES[0], CHOICES[-1]))
    return importance, units, float(draw.uniform(least, most))


def best_by_hand(importance, units, budget):
    """A plain loop over all plans, written apart from the solver."""
    best = -math.inf
    for plan in itertools.product(CHOICES, repeat=len(units)):
        price = sum(u * r for u, r in zip(units, plan, strict=True))
        if price <= budget:
            gain = sum(i * math.log(1 + r, 2) for i, r in zip(importance, plan, strict=True))
            best = max(best, gain)
    return best


def test_greedy_is_within_five_percent_of_the_best_over_two_hundred_cases():
    gaps = []
    for seed in range(200):
        importance, units, budget = random_case(seed)
        greedy = greedy_ranks(importance, units, budget, CHOICES)
        exact = exhaustive_ranks(importance, units, budget, CHOICES)
        assert cost(units, greedy) <= budget
        assert cost(units, exact) <= budget
        best = worth(importance, exact)
        gaps.append(1 - worth(importance, greedy) / best)
    assert min(gaps) >= -1e-12
    assert max(gaps) <= 0.05


@pytest.mark.parametrize("seed", range(12))
def test_the_exhaustive_solver_equals_a_plain_loop(seed):
    importance, units, budget = random_case(seed)
    found = worth(importance, exhaustive_ranks(importance, units, budget, CHOICES))
    assert found == pytest.approx(best_by_hand(importance, units, budget), abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("method", sorted(SOLVERS))
def test_a_larger_budget_is_never_worth_less(method, seed):
    importance, units, budget = random_case(seed)
    small = SOLVERS[method](importance, units, budget, CHOICES)
    large = SOLVERS[method](importance, units, 1.5 * budget, CHOICES)
    assert worth(importance, large) >= worth(importance, small) - 1e-9


def test_half_the_budget_lowers_ranks():
    importance, units = [1.0, 2.0, 0.5], [100.0, 100.0, 100.0]
    whole = greedy_ranks(importance, units, 6000, CHOICES)
    half = greedy_ranks(importance, units, 3000, CHOICES)
    assert sum(half) < sum(whole)
    assert all(less <= more for less, more in zip(half, whole, strict=True))


def test_importance_decides_and_uniform_does_not_hear_it():
    units, budget = [100.0, 100.0], 4000
    first = greedy_ranks([5.0, 1.0], units, budget, CHOICES)
    second = greedy_ranks([1.0, 5.0], units, budget, CHOICES)
    assert first == second[::-1]
    assert first[0] > first[1]
    assert uniform_ranks([5.0, 1.0], units, budget, CHOICES) == (16, 16)


def test_everything_fits_a_large_budget():
    assert greedy_ranks([1.0, 0.1], [10.0, 20.0], 1e9, CHOICES) == (64, 64)


@pytest.mark.parametrize("method", sorted(SOLVERS))
def test_a_budget_below_the_floor_is_refused_with_the_numbers(method):
    with pytest.raises(ValueError, match="smallest ranks cost 800, the budget is 799"):
        SOLVERS[method]([1.0, 1.0], [100.0, 100.0], 799, CHOICES)


def test_too_many_plans_are_not_tried():
    with pytest.raises(ValueError, match="too many to try"):
        exhaustive_ranks([1.0] * 12, [1.0] * 12, 1e6, CHOICES)


def test_importance_is_the_share_of_the_gradient_and_grows_with_depth():
    assert layer_importance([1.0, 3.0], [0.0, 1.0], 0.0) == [0.5, 1.5]
    assert layer_importance([2.0, 2.0], [0.0, 1.0], 0.5) == [1.0, 1.5]
    assert layer_importance([0.0, 0.0], [0.0, 0.0], 0.5) == [1.0, 1.0]


def test_complexity_is_variance_times_gradient_with_the_hardest_at_one():
    features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0], [5.0, 6.0]])
    found = cluster_complexity(features, [0, 0, 1, 1], [1.0, 3.0, 4.0, 4.0])
    # variances 2 and 1/2, mean norms 2 and 4
    assert found == {0: pytest.approx(1.0), 1: pytest.approx(0.5)}
    apart = cluster_complexity(features, [0, 1, 2, 3], [1.0] * 4)
    assert set(apart.values()) == {1.0}


def test_a_client_alone_is_as_hard_as_its_own_gradient_says():
    features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0], [5.0, 6.0], [9.0, 9.0]])
    labels, norms = [0, 0, 1, 1, 2], [1.0, 3.0, 4.0, 4.0, 1.6]
    # variances 2 and 1/2, of which the mean stands in for the fifth's
    expected = {0: 4.0, 1: 2.0, 2: 1.25 * 1.6}
    found = cluster_complexity(features, labels, norms)
    assert found == {label: pytest.approx(value / 4.0) for label, value in expected.items()}
    easier, harder = (
        cluster_complexity(features, labels, [*norms[:4], own])[2] for own in (0.1, 1.6)
    )
    assert 0 < easier < harder < 1
    # Where everybody is alone, gradients alone count.
    apart = cluster_complexity(features, range(5), norms)
    assert apart == {i: pytest.approx(norm / 4.0) for i, norm in enumerate(norms)}


def test_equal_clusters_are_equally_hard_whatever_their_size():
    sizes = (2, 5, 8, 1)
    labels = [label for label, count in enumerate(sizes) for _ in range(count)]
    found = []
    for seed in range(40):
        features = np.random.default_rng(seed).standard_normal((len(labels), 256))
        one = cluster_complexity(torch.from_numpy(features), labels, [1.0] * len(labels))
        found.append([one[label] for label in range(len(sizes))])
    means = np.mean(found, axis=0)
    assert means.min() > 0.9 and means.max() / means.min() < 1.05, means


def test_complexity_of_thirty_unequal_clusters_equals_a_plain_loop():
    draw = np.random.default_rng(5)
    labels = [int(label) for label in draw.integers(0, 12, 30)] + [12, 13]
    features, norms = draw.standard_normal((32, 6)), draw.uniform(0.1, 4.0, 32)
    spread, size = {}, {}
    for label in set(labels):
        own = [i for i, other in enumerate(labels) if other == label]
        middle = sum(features[i] for i in own) / len(own)
        if len(own) > 1:
            spread[label] = sum(((features[i] - middle) ** 2).sum() for i in own) / (len(own) - 1)
        size[label] = sum(norms[i] for i in own) / len(own)
    usual = sum(spread.values()) / len(spread)
    raw = {label: spread.get(label, usual) * size[label] for label in size}
    found = cluster_complexity(torch.from_numpy(features), labels, norms.tolist())
    assert found.keys() == raw.keys()
    for label, value in raw.items():
        assert found[label] == pytest.approx(value / max(raw.values()), rel=1e-12)
