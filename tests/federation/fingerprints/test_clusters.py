"""Who belongs together, on planted fingerprints: real groups are found, chance ones are not."""

from functools import partial

import numpy as np
import pytest
import torch

from atlas.config.plan import ClusterSettings, FingerprintSettings
from atlas.federation.fingerprints import clusters as grouping
from atlas.federation.fingerprints.clusters import (
    Clusters,
    describe,
    group_clients,
    rotations,
    try_splits,
)
from atlas.federation.fingerprints.compare import compare_prints
from atlas.federation.fingerprints.planned import cluster_warnings, describe_clusters
from atlas.ops.clustering.clusters import adjusted_rand, canonical, score_partition
from atlas.ops.clustering.stability import LEVEL

WIDTH, FOLDS = 64, 8


def directions(count, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((WIDTH, count)))[0].T


def sent(means, noise, seed):
    """Folds that add up to the means, and noise of length `noise` in all."""
    draw = np.random.default_rng(seed)
    noises = draw.standard_normal((len(means), FOLDS, WIDTH)) * noise / np.sqrt(FOLDS * WIDTH)
    return torch.from_numpy(means[:, None] / FOLDS + noises)


def own(n, size, seed):
    """What makes each client differ from the others for good, as its own data does."""
    return np.random.default_rng(seed).standard_normal((n, WIDTH)) * size / np.sqrt(WIDTH)


def planted(seed, groups=3, each=4, size=0.3):
    means = np.repeat(directions(groups, seed), each, 0) + own(groups * each, size, seed + 50)
    return {"text": sent(means, 0.3, seed + 99)}


def one_cloud(seed, n=8):
    return {"text": sent(directions(1, seed) + own(n, 0.4, seed + 50), 0.2, seed + 99)}


def nested(seed):
    """Two far texts; the clients of the first have opposite labels, those of the second noise."""
    text = np.repeat(directions(2, seed), 6, 0) + own(12, 0.2, seed + 50)
    sign = np.repeat([1.0, -1.0, 0.0], [3, 3, 6])[:, None]
    label = sign * directions(1, seed + 10) + np.abs(sign) * own(12, 0.1, seed + 60)
    return {"text": sent(text, 0.2, seed + 99), "label": sent(label, 0.3, seed + 199)}


def examine_of(parts, names=None):
    n = len(next(iter(parts.values())))
    names = names or [f"c{i:02d}" for i in range(n)]
    clients = {c: {part: rows[i] for part, rows in parts.items()} for i, c in enumerate(names)}
    settings = FingerprintSettings(parts=list(parts), head=False, folds=FOLDS)

    def examine(some):
        chosen = {names[i]: clients[names[i]] for i in some}
        return compare_prints(chosen, [2] * len(chosen), settings, resamples=2, seed=0)

    return examine


def grouped(parts, *, seed=0, tasks=None, names=None, **settings):
    n = len(next(iter(parts.values())))
    settings = ClusterSettings(**{"largest": 3, **settings})
    return group_clients(examine_of(parts, names), tasks or ["t"] * n, settings, seed)


@pytest.fixture(autouse=True)
def _few_rotations(monkeypatch):
    """As few as can tell the level: the test of a split is exact with any number of them."""
    few = partial(_least, grouping.rotations)
    monkeypatch.setattr(grouping, "rotations", few)


def _least(usual, tests, level):
    found = round(tests / level) - 1
    assert found <= usual(tests, level)
    return found


TRUTH = [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("method", ["kmeans", "spectral", "hdbscan"])
def test_planted_groups_are_found(method):
    found = grouped(planted(1), method=method, smallest=3, largest=4)
    assert found.labels == tuple(TRUTH)
    assert (found.method, found.metrics.k) == (method, 3)
    assert adjusted_rand(found.labels, TRUTH) == 1.0
    by_k = {split.metrics.k: split for split in found.tried}
    assert set(by_k) == ({3} if method == "hdbscan" else {2, 3, 4})
    assert by_k[3].real and by_k[3].stability == 1.0
    assert by_k[3].share > by_k[3].needed
    assert by_k[3].metrics.score == max(split.metrics.score for split in found.tried)


def test_clients_of_one_cloud_stay_together():
    seeds = range(10)
    wrong = [grouped(one_cloud(seed), seed=seed).metrics.k > 1 for seed in seeds]
    assert sum(wrong) <= 1, "a chance of 0.05 each"
    # The score alone has no k = 1 to offer, and would have split all of them.
    prints = examine_of(one_cloud(0))(range(8))
    tried = try_splits(prints, ClusterSettings(largest=3), 0, LEVEL)
    assert [split.metrics.k for split in tried] == [2, 3]
    assert all(split.metrics.score > 0 and not split.real for split in tried)
    assert grouping._pick(tried, ClusterSettings(largest=3), 8) == (0,) * 8


def test_without_the_test_of_splits_one_cloud_would_fall_apart(monkeypatch):
    monkeypatch.setattr(
        grouping, "real_splits", lambda halves, ks, *rest: dict.fromkeys(ks, (True, 1.0, 0.0))
    )
    assert all(grouped(one_cloud(seed)).metrics.k > 1 for seed in range(3))


def test_hidden_groups_are_found_in_a_second_look(monkeypatch):
    wanted = (0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2)
    for seed in (0, 1):
        found = grouped(nested(seed))
        assert found.labels == wanted
        assert found.metrics.labels == wanted and found.metrics.k == 3
    monkeypatch.setattr(grouping, "_refine", lambda examine, labels, *rest: [(c,) for c in labels])
    for seed in (0, 1):
        assert grouped(nested(seed)).labels == (0,) * 6 + (1,) * 6


def test_a_second_look_goes_on_inside_what_it_found(monkeypatch):
    """Splits inside splits: three levels, positions mapped back to the clients they belong to."""
    truth = {0: "aab", 1: "aac", 2: "b", 3: "aab", 4: "aac", 5: "b", 6: "ad", 7: "ad", 8: "aab",
             9: "aac", 10: "ad", 11: "b"}  # fmt: skip
    depth_of = {12: 1, 9: 2, 6: 3}
    asked = []

    def examine(some):
        asked.append(list(some))
        return list(some)

    def by_hand(prints, settings, seed, level):
        depth = depth_of.get(len(prints))
        return [canonical([truth[i][:depth] for i in prints])] if depth else []

    monkeypatch.setattr(grouping, "try_splits", by_hand)
    monkeypatch.setattr(grouping, "_pick", lambda tried, s, n: tried[0] if tried else (0,) * n)
    first = canonical([truth[i][:1] for i in range(12)])
    found = grouping._refine(examine, first, ClusterSettings(), 0)
    assert canonical(found) == canonical([truth[i] for i in range(12)])
    # Both parts of `aa` went the same way twice before they were parted.
    assert found[0][:2] == found[1][:2] != found[6][:2] and len(found[6]) == 2
    assert asked == [[0, 1, 3, 4, 6, 7, 8, 9, 10], [0, 1, 3, 4, 8, 9]]


def test_small_clusters_are_not_looked_at_again_and_the_level_is_shared(monkeypatch):
    seen = []

    def watch(prints, settings, seed, level):
        seen.append((len(prints), level))
        return []

    monkeypatch.setattr(grouping, "try_splits", watch)
    labels = (0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2)
    unsplit = [(label,) for label in labels]
    assert grouping._refine(list, labels, ClusterSettings(), 0) == unsplit
    assert seen == [(4, LEVEL / 2), (5, LEVEL / 2)]
    seen.clear()
    assert grouping._refine(list, (0,) * 6, ClusterSettings(), 0) == [(0,)] * 6
    assert not seen, "one cluster was looked at before"


def test_client_order_is_irrelevant():
    names = [f"c{i:02d}" for i in range(12)]
    order = np.random.default_rng(3).permutation(12).tolist()
    shuffled = [names[i] for i in order]
    for parts, method in ((nested(0), "kmeans"), (planted(1), "spectral")):
        plain = grouped(parts, names=names, method=method)
        parts = {part: rows[order] for part, rows in parts.items()}
        turned = grouped(parts, names=shuffled, method=method)
        assert turned.labels == canonical([plain.labels[i] for i in order])
        for one, two in zip(plain.tried, turned.tried, strict=True):
            assert describe(two) == pytest.approx(describe(one))


def test_known_groups_look_at_no_fingerprint():
    tasks = ["b", "a", "b", "c"] * 3
    assert grouped(planted(1), tasks=tasks, method="oracle").labels == (0, 1, 0, 2) * 3
    assert grouped(planted(1), tasks=tasks, method="one").labels == (0,) * 12
    for method in ("oracle", "one"):
        assert grouped(planted(1), tasks=tasks, method=method).tried == ()
    metrics = grouped(planted(1), tasks=[str(i) for i in TRUTH], method="oracle").metrics
    assert metrics == score_partition(examine_of(planted(1))(range(12)).features, TRUTH)


def test_permuted_keeps_the_sizes_and_loses_the_groups():
    parts = {"text": planted(1)["text"][:9]}
    kmeans, permuted = grouped(parts, k=3), grouped(parts, method="permuted", k=3)
    assert kmeans.labels == (0,) * 4 + (1,) * 4 + (2,)

    def sizes(labels):
        return sorted(labels.count(c) for c in set(labels))

    assert sizes(permuted.labels) == sizes(kmeans.labels)
    assert permuted.labels == canonical(permuted.labels)
    assert adjusted_rand(permuted.labels, kmeans.labels) < 0.5
    assert permuted.metrics.silhouette < kmeans.metrics.silhouette
    assert grouped(parts, method="permuted", k=3).labels == permuted.labels
    assert grouped(parts, method="permuted", k=3, seed=1).labels != permuted.labels


@pytest.mark.parametrize("method", ["kmeans", "spectral"])
@pytest.mark.parametrize("k", [1, 2, 5, 8, 20])
def test_a_k_that_is_asked_for_is_obeyed(method, k):
    found = grouped(one_cloud(0), method=method, k=k)
    assert found.metrics.k == len(set(found.labels)) == min(k, 8)
    (tried,) = found.tried
    assert not tried.real
    assert tried.metrics == found.metrics


def test_a_k_that_is_asked_for_is_not_refined():
    assert grouped(nested(0), k=2).labels == (0,) * 6 + (1,) * 6


@pytest.mark.parametrize("method", ["kmeans", "spectral", "hdbscan", "permuted", "oracle", "one"])
def test_one_or_two_clients(method):
    for n in (1, 2):
        parts = {"text": sent(directions(n, 0), 0.1, 0)}
        found = grouped(parts, method=method)
        assert found.labels == (0,) * n
        assert found.metrics.k == 1
        assert found.tried == ()
    apart = grouped({"text": sent(directions(2, 0), 0.1, 0)}, tasks=["a", "b"], method="oracle")
    assert apart.labels == (0, 1)
    assert describe_clusters(apart, ["a", "b"])["silhouette"] is None


def test_identical_clients_are_one_cluster():
    rows = sent(directions(1, 0), 0.5, 0).expand(6, -1, -1)
    for method in ("kmeans", "spectral", "hdbscan"):
        assert grouped({"text": rows}, method=method).labels == (0,) * 6


def test_agreement_with_tasks_by_hand():
    labels, tasks = (0, 0, 0, 1, 1, 1), ["a", "a", "b", "b", "b", "b"]
    clusters = Clusters("kmeans", labels, score_partition(np.eye(6), labels))
    told = clusters.compared(tasks)
    assert told["table"] == {"0": {"a": 2, "b": 1}, "1": {"a": 0, "b": 3}}
    assert told["purity"] == {"mean": pytest.approx(5 / 6), "weighted": pytest.approx(5 / 6)}
    # Pairs together in both 1 + 3 = 4; in labels 3 + 3, in tasks 1 + 6, of 15 in all.
    chance = 6 * 7 / 15
    assert told["ari"] == pytest.approx((4 - chance) / ((6 + 7) / 2 - chance))
    entry = describe_clusters(clusters, tasks)
    assert (entry["k"], entry["labels"], entry["method"]) == (2, list(labels), "kmeans")
    assert entry["silhouette"] == clusters.metrics.silhouette
    assert entry["tried"] == []


def warned(labels, tasks):
    metrics = score_partition(np.eye(len(labels)), labels)
    return cluster_warnings(Clusters("kmeans", labels, metrics), tasks)


def test_clusters_of_several_tasks_are_warned_of():
    assert warned((0, 0, 0, 0, 0), list("aaaab")) == []
    (told,) = warned((0, 0, 0, 0), list("aaab"))
    assert "purity 0.75, by size 0.75, below 0.8" in told
    # A large mixed cluster hides behind pure small ones in one mean, a small one in the other.
    assert len(warned((0, 0, 0, 0, 1, 2), list("aabbcd"))) == 1
    assert len(warned((0,) * 8 + (1, 1), list("aaaaaaaabc"))) == 1
    assert warned((0, 0, 1, 1), list("aabb")) == []


def test_rotations_can_tell_the_chance_they_are_asked_for():
    assert rotations(1, 0.05) == 199
    assert rotations(7, 0.05) == 279
    for tests, level in ((1, 0.05), (3, 0.025), (7, 0.05 / 3)):
        assert rotations(tests, level) + 1 >= round(tests / level)
