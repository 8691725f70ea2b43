"""From a grouped sample to everybody, on planted groups."""

import numpy as np
import pytest

from atlas.ops.clustering import clusters as extend
from atlas.ops.clustering.clusters import (
    adjusted_rand,
    canonical,
    extend_labels,
    score_partition,
    score_sampled,
)


def planted(n=600, groups=4, noise=0.25, seed=0):
    draw = np.random.default_rng(seed)
    which = draw.integers(0, groups, n)
    return np.eye(groups, 8)[which] + noise * draw.standard_normal((n, 8)), which


def test_everybody_is_placed_by_the_sample():
    points, which = planted()
    sample = list(range(0, 600, 10))
    found = extend_labels(points, sample, which[sample].tolist(), 0)
    assert len(found) == 600
    assert found == canonical(found)
    assert adjusted_rand(found, which.tolist()) > 0.95
    merged = [min(label, 2) for label in which[sample].tolist()]
    fewer = extend_labels(points, sample, merged, 0)
    assert len(set(fewer)) == 3
    assert adjusted_rand(fewer, which.tolist()) < 0.9


def test_mini_batches_correct_centres_that_a_small_sample_got_wrong():
    points, which = planted(noise=0.45)
    sample = [int(np.nonzero(which == g)[0][i]) for g in range(4) for i in range(2)]
    centres = np.stack([points[sample[2 * g : 2 * g + 2]].mean(0) for g in range(4)])
    nearest = np.square(points[:, None] - centres).sum(-1).argmin(1)
    found = extend_labels(points, sample, which[sample].tolist(), 0)
    before = adjusted_rand(nearest.tolist(), which.tolist())
    assert adjusted_rand(found, which.tolist()) > before + 0.05


def test_the_order_of_clients_does_not_matter():
    points, which = planted(200)
    order = np.random.default_rng(1).permutation(200)
    sample = list(range(0, 200, 5))
    places = [int(np.nonzero(order == i)[0][0]) for i in sample]
    one = extend_labels(points, sample, which[sample].tolist(), 3)
    two = extend_labels(points[order], places, which[sample].tolist(), 3)
    assert canonical([one[i] for i in order]) == two


def test_a_client_alone_in_the_sample_makes_no_group():
    points, which = planted(100, groups=2)
    sample, labels = list(range(20)), which[:20].tolist()
    assert len(set(extend_labels(points, sample, [*labels[:19], 9], 0))) == 2
    assert set(extend_labels(points, sample, [0] * 20, 0)) == {0}
    assert len(set(extend_labels(points, [0, 1, 2], [0, 1, 2], 0))) == 3


def test_scores_of_a_sample_are_near_those_of_all(monkeypatch):
    points, which = planted(800)
    labels = canonical(which.tolist())
    whole = score_partition(points, labels)
    assert score_sampled(points, labels, 0) == whole
    monkeypatch.setattr(extend, "JUDGED", 300)
    part = score_sampled(points, labels, 0)
    assert part.labels == labels and part.k == 4
    assert part.silhouette == pytest.approx(whole.silhouette, abs=0.03)
    assert part.silhouette != whole.silhouette
