"""Splits of use: false ones are gone, real ones stay, and what was split forms a tree."""

from dataclasses import replace

import numpy as np
import pytest
import scipy
import torch

from atlas.config.plan import ClusterSettings, RelationSettings
from atlas.federation.fingerprints.clusters import Clusters
from atlas.federation.fingerprints.clusters_sampled import group_many
from atlas.federation.fingerprints.planned import describe_clusters
from atlas.federation.fingerprints.tree import describe_tree
from atlas.federation.fingerprints.warnings import heard_by, size_warnings
from atlas.federation.strategies.base import View
from atlas.federation.strategies.relations import cluster_mean, diffusion
from atlas.federation.strategies.scales import kin_of
from atlas.ops.clustering.clusters import adjusted_rand, score_partition
from atlas.ops.graph.sparse_rows import share_rows
from tests.federation.fingerprints.test_clusters import (
    _few_rotations,
    directions,
    examine_of,
    grouped,
    nested,
    one_cloud,
    own,
    planted,
    sent,
)

assert _few_rotations, "it acts on every test of this file"


def alike(seed):
    """Two far tasks of four clients each, which differ by chance alone."""
    return {"text": sent(np.repeat(directions(2, seed), 4, 0), 1.0, seed + 99)}


def genres(seed):
    """Two tasks; each client of the first has a genre of its own, for good."""
    text = np.repeat(directions(2, seed), 5, 0)
    text[:5] += 0.7 * directions(7, seed + 10)[2:]
    return {"text": sent(text, 0.15, seed + 99)}


def test_switched_off_the_false_splits_are_back():
    seeds = (2, 4, 5, 6, 11)
    before = [grouped(alike(seed), seed=seed, splits="real") for seed in seeds]
    after = [grouped(alike(seed), seed=seed) for seed in seeds]
    assert sum(found.metrics.k > 2 for found in before) >= 3
    assert all(found.labels == (0,) * 4 + (1,) * 4 for found in after)
    assert all(split.use.useful is None for split in before[0].tried)
    assert {split.metrics.k: split.use.useful for split in after[0].tried} == {2: True, 3: False}


def few_opposed(seed):
    """Three clients and three that want the opposite, hardly more than their noise."""
    sign = np.repeat([1.0, -1.0], 3)[:, None]
    return {"text": sent(sign * directions(1, seed), 2.0, seed + 99)}


def test_opposite_aims_of_few_clients_are_found_where_the_test_of_a_cloud_misses_them():
    found = [grouped(few_opposed(seed), seed=seed) for seed in range(10)]
    right = [one.labels == (0, 0, 0, 1, 1, 1) for one in found]
    real = [one.tried[0].real for one in found]
    assert sum(right) >= 8
    assert sum(real) <= 5
    only = [grouped(few_opposed(seed), seed=seed, splits="real").labels for seed in range(10)]
    assert sum(labels == (0, 0, 0, 1, 1, 1) for labels in only) <= 5


def test_parts_of_a_cloud_gain_but_share_little_and_are_not_kept():
    found = [grouped(one_cloud(seed), seed=seed) for seed in range(5)]
    first = [one.tried[0] for one in found]
    assert any(split.use.useful for split in first)
    assert max(split.use.shared for split in first) < 0.4
    assert min(grouped(planted(seed)).tried[1].use.shared for seed in range(3)) > 0.7


def test_clients_of_one_task_are_not_left_alone_with_their_genres():
    for seed in range(4):
        found = grouped(genres(seed), seed=seed, largest=4)
        assert found.labels == (0,) * 5 + (1,) * 5


def test_a_client_that_is_like_nobody_is_not_joined_by_force():
    text = directions(3, 0)[[0, 0, 0, 0, 1, 1, 1, 1, 2]] + own(9, 0.1, 50)
    found = grouped({"text": sent(text, 0.2, 99)}, largest=4)
    assert found.labels == (0, 0, 0, 0, 1, 1, 1, 1, 2)


def styles(each):
    """Two tasks of equal size; the first has two styles that want much the same."""
    text = np.repeat(directions(2, 3), each, 0) + own(2 * each, 0.1, 5)
    style = np.repeat([1.0, -1.0, 0.0], [each // 2, each // 2, each])[:, None]
    text += 0.2 * style * directions(4, 13)[2]
    return {"text": sent(text, 0.1, 3)}


def test_parts_of_one_cluster_know_what_they_have_in_common():
    opposite = grouped(nested(0))
    assert opposite.labels == (0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2)
    assert opposite.first == 2
    assert describe_tree(opposite.paths) == [[0, 1], 2]
    assert set(opposite.kin) == {(0, 1)}
    assert opposite.kin[0, 1] < 0.2, "opposite labels"
    kindred = grouped(styles(8))
    assert kindred.labels == (0,) * 4 + (1,) * 4 + (2,) * 8
    assert kindred.kin[0, 1] > 0.5, "one task in two styles"
    entry = describe_clusters(kindred, ["a"] * 8 + ["b"] * 8)
    assert entry["tree"] == [[0, 1], 2]
    assert entry["first"] == 2
    assert entry["kin"] == [[0, 1, kindred.kin[0, 1]]]
    assert grouped(planted(1)).kin == {}
    assert describe_tree(((0, 0), (1,), (0, 1, 0), (0, 1, 1))) == [[0, [2, 3]], 1]


def test_a_sample_of_many_clients_is_held_to_the_same(monkeypatch):
    from atlas.federation.fingerprints import clusters_sampled

    monkeypatch.setattr(clusters_sampled, "SAMPLE", 40)
    parts = styles(100)
    examine = examine_of(parts)
    features = examine(range(200)).features
    settings = ClusterSettings(largest=3)
    found = group_many(examine, features, ["t"] * 200, settings, 0)
    truth = [0] * 50 + [1] * 50 + [2] * 100
    assert adjusted_rand(found.labels, truth) > 0.97
    low, high = sorted((found.labels[0], found.labels[60]))
    assert found.kin[low, high] > 0.5
    assert len(found.paths) == found.metrics.k == 3
    cloud = np.repeat(directions(2, 4), 100, 0)
    noise = {"text": sent(cloud, 0.3, 4)}
    two = group_many(
        examine_of(noise), examine_of(noise)(range(200)).features, ["t"] * 200, settings, 0
    )
    assert two.metrics.k == 2 and two.kin == {}


def clusters_of(labels, **more):
    return Clusters("kmeans", labels, score_partition(np.eye(len(labels)), labels), **more)


def test_few_members_are_warned_of_and_what_it_means():
    alone, pair = warned((0, 0, 0, 0, 1, 2, 2))
    assert alone.startswith("alone in a cluster: c4; nobody's adapter is mixed")
    assert pair.startswith("in a cluster of two: c5, c6; each has one other")
    parted = (0, 0, 0, 0, 0, 0, 1)
    (part,) = warned(parted, {(0, 1): 0.5})
    assert part.startswith("alone in a part of a cluster: c6; they learn from the other parts")
    (cut,) = warned(parted, {(0, 1): 0.0})
    assert cut.startswith("alone in a cluster: c6")
    assert warned((0, 0, 0, 1, 1, 1)) == []
    assert warned((0,)) == []
    (many,) = warned(tuple(range(7)))
    assert "c0, c1, c2, c3, c4 and 2 more" in many


def test_warnings_are_of_who_is_heard_and_not_of_clusters_alone():
    parted, kin = (0, 0, 0, 0, 0, 0, 1), {(0, 1): 0.5}
    for settings in ({"siblings": "apart"}, {"relation": cluster_mean}):
        (alone,) = warned(parted, kin, **settings)
        assert alone.startswith("alone in a cluster: c6; nobody's adapter")
    for settings in ({"cross": 0.2}, {"singletons": "joined"}):
        (joined,) = warned(parted, kin, siblings="apart", **settings)
        assert joined.startswith("alone in a cluster: c6; they learn only from clients of other")
    assert warned((0, 0, 0, 0, 0, 1, 1), kin) == [], "two, but the other part is heard as well"
    (still,) = warned((0,) * 7, eta=0.0)
    assert still.startswith("without neighbours in their cluster: c0, c1")
    sparse = share_rows(
        scipy.sparse.csr_array(np.array([[0.5, 0.5, 0], [0, 1, 0], [0.2, 0.3, 0.5]]))
    )
    assert heard_by("abc", sparse) == heard_by("abc", sparse.dense()) == {"a": 1, "b": 0, "c": 2}
    modules = torch.stack([sparse.dense(), torch.eye(3, dtype=torch.float64)])
    assert heard_by("abc", modules) == {"a": 1, "b": 0, "c": 2}, "in one module is heard"


def warned(labels, kin=None, relation=diffusion, **settings):
    """Warnings about clients that are all equally alike."""
    names, clusters = tuple(f"c{i}" for i in range(len(labels))), clusters_of(labels, kin=kin or {})
    view = View(
        names,
        torch.ones(len(names), dtype=torch.float64),
        ("",) * len(names),
        0,
        features=torch.ones(len(names), 1, dtype=torch.float64),
        clusters=labels,
        settings=RelationSettings(**settings),
        kin=clusters.kin,
    )
    return size_warnings(clusters, names, heard_by(names, relation(view)), kin_of(view))


@pytest.mark.parametrize(("second", "least", "most"), [(1.0, 0.9, 1.0), (-1.0, 0.0, 0.0)])
def test_two_clients_are_compared_as_they_are(second, least, most):
    rows = np.stack([directions(1, 0)[0], second * directions(1, 0)[0]])
    prints = examine_of({"text": sent(rows, 0.2, 1)})(range(2))
    assert float(prints.features[0] @ prints.features[1]) == pytest.approx(-1.0)
    assert least <= float(prints.agreement[0, 1]) <= most
    assert torch.equal(prints.agreement, prints.agreement.T)
    assert replace(prints, folds={}).agreement is None
