"""The search for near points, against all distances."""

import numpy as np
import pytest
import torch

from atlas.ops.graph.neighbours import nearest_points, split, squared_gaps


def cloud(n, seed=0, groups=6, width=16):
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((groups, width))
    return torch.from_numpy(centres[draw.integers(0, groups, n)] + draw.standard_normal((n, width)))


def exact(points, count):
    gaps = (points[:, None] - points[None]).square().sum(-1)
    gaps.fill_diagonal_(torch.inf)
    return torch.argsort(gaps, dim=1, stable=True)[:, :count]


def recall(points, found):
    wanted = exact(points, found.shape[1]).tolist()
    hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), wanted, strict=True)]
    return sum(hits) / found.numel()


@pytest.mark.parametrize("n", [2, 3, 50, 200])
def test_up_to_a_leaf_the_search_is_exact(n):
    points = cloud(n)
    found = nearest_points(points, 5, leaf=200)
    assert torch.equal(found, exact(points, min(5, n - 1)))


def test_among_many_nearly_all_are_found():
    points = cloud(1500)
    found = nearest_points(points, 8, leaf=128)
    assert recall(points, found) > 0.9
    assert (found != torch.arange(1500)[:, None]).all()
    assert all(len(set(row)) == 8 for row in found.tolist())


def test_trees_and_asking_around_are_what_finds_them(monkeypatch):
    points = cloud(1500)
    several = recall(points, nearest_points(points, 8, leaf=128))
    assert recall(points, nearest_points(points, 8, leaf=128, trees=1)) < several - 0.03
    monkeypatch.setattr("atlas.ops.graph.neighbours._ask_around", lambda found: None)
    assert recall(points, nearest_points(points, 8, leaf=128)) < several - 0.03


def test_neighbours_come_nearest_first():
    points = cloud(600)
    found = nearest_points(points, 6, leaf=64)
    gaps = (points[:, None] - points[found]).square().sum(-1)
    assert bool((gaps.diff(dim=1) >= -1e-12).all())


def test_the_same_seed_finds_the_same():
    points = cloud(700)
    one, two = (nearest_points(points, 5, 3, leaf=64) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, nearest_points(points, 5, 4, leaf=64, trees=1))


def test_leaves_part_the_points_into_halves_of_halves():
    leaves = split(cloud(1000), 130, np.random.default_rng(0))
    assert sorted(torch.cat(leaves).tolist()) == list(range(1000))
    assert {len(leaf) for leaf in leaves} == {125}


def test_points_that_are_all_alike_end():
    found = nearest_points(torch.ones(300, 4), 3, leaf=32)
    assert bool((found >= 0).all())
    assert (found != torch.arange(300)[:, None]).all()


def test_one_point_has_no_neighbours_and_leaves_must_hold_them():
    assert nearest_points(torch.ones(1, 3), 4).shape == (1, 0)
    with pytest.raises(ValueError, match="leaf of 4"):
        nearest_points(cloud(10), 4, leaf=4)


def test_squared_gaps_equal_a_double_loop():
    one, two = cloud(4), cloud(5, seed=1)
    found = squared_gaps(one, two)
    for i in range(4):
        for j in range(5):
            wanted = sum((float(a) - float(b)) ** 2 for a, b in zip(one[i], two[j], strict=True))
            assert float(found[i, j]) == pytest.approx(wanted, abs=1e-12)
