import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from sklearn.cluster import SpectralClustering

from atlas.ops.clustering.clusters import (
    adjusted_rand,
    canonical,
    contingency,
    hdbscan_partition,
    kmeans_labels,
    purity,
    score_partition,
    spectral_partition,
    weighted_score,
)
from atlas.ops.clustering.stability import bootstrap_stability, real_splits

SEEDS = range(20)
ROTATED = 10_000
"""Added to the seeds of rotations: they must not come from the stream the clients came from."""


def planted(groups, each, seed, gap=3.0, dims=64, resamples=1, jitter=0.2, rank=None):
    """Clients around group centres `gap` apart; a client's own noise has a length of about 1."""
    draw = np.random.default_rng(seed)
    centres = np.linalg.qr(draw.standard_normal((dims, groups)))[0].T * gap / np.sqrt(2)
    noise = draw.standard_normal((groups * each, dims)) / np.sqrt(rank or dims)
    noise[:, rank or dims :] = 0
    clients = np.repeat(centres, each, 0) + noise + draw.standard_normal(dims)
    return [
        clients + jitter * draw.standard_normal(clients.shape) / np.sqrt(dims)
        for _ in range(resamples)
    ]


def split_is_real(resamples, k, seed, permutations):
    return real_splits(resamples, [k], seed, permutations)[k]


def partitions(rows, ks, seed):
    return [score_partition(rows, kmeans_labels(rows, k, seed)) for k in ks]


def truth(groups, each):
    return np.repeat(np.arange(groups), each).tolist()


@pytest.mark.parametrize(("groups", "each"), [(2, 3), (3, 3), (4, 5)])
def test_planted_groups_are_recovered(groups, each):
    for seed in range(5):
        (rows,) = planted(groups, each, seed, gap=6.0)
        tried = partitions(rows, range(2, min(8, groups * each - 1) + 1), seed)
        best = max(tried, key=lambda found: found.score)
        assert best.k == groups
        assert adjusted_rand(best.labels, truth(groups, each)) == 1.0
        assert hdbscan_partition(rows, 3) == tuple(truth(groups, each))
        affinity = np.exp(-np.square(rows[:, None] - rows).sum(-1) / 10)
        assert spectral_partition(affinity, groups, seed) == tuple(truth(groups, each))


def test_partitions_follow_the_clients_when_their_order_changes():
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((12, 5))
    for seed in range(5):
        order = draw.permutation(12)
        for before, after in zip(
            partitions(rows, range(2, 9), seed),
            partitions(rows[order], range(2, 9), seed),
            strict=True,
        ):
            assert after.labels == canonical([before.labels[i] for i in order])
            assert after.score == pytest.approx(before.score, abs=1e-12)


def test_metrics_are_scikit_learns_and_the_score_is_the_formula():
    (rows,) = planted(3, 4, 0, gap=2.0)
    for found in partitions(torch.from_numpy(rows), [2, 3, 5], 0):
        sil = reference.silhouette_score(rows, found.labels)
        db = reference.davies_bouldin_score(rows, found.labels)
        ch = reference.calinski_harabasz_score(rows, found.labels)
        assert (found.silhouette, found.davies_bouldin, found.calinski_harabasz) == (sil, db, ch)
        assert found.score == 0.5 * (sil + 1) / 2 + 0.3 / (1 + db) + 0.2 * ch / (ch + 1000)
    assert weighted_score(1.0, 0.0, 1000.0) == pytest.approx(0.9)


def test_undefined_partitions_score_nothing():
    rows = np.random.default_rng(0).standard_normal((4, 3))
    for labels in ([0, 0, 0, 0], [3, 2, 1, 0]):
        found = score_partition(rows, labels)
        assert (found.silhouette, found.davies_bouldin, found.calinski_harabasz) == (0, 0, 0)
        assert found.score == 0.0
        assert found.labels == canonical(labels)
    with pytest.raises(ValueError, match="3 labels for 4"):
        score_partition(rows, [0, 1, 1])


def test_small_and_identical_federations_are_one_cluster():
    for rows in (np.ones((1, 3)), np.eye(2), np.ones((5, 3)), np.zeros((5, 0))):
        assert split_is_real([rows, rows], 2, 0, 19) == (False, 0.0, 0.0)
    twins = np.repeat(np.eye(3), 2, 0)
    assert kmeans_labels(twins, 5, 0) == (0, 0, 1, 1, 2, 2)
    assert hdbscan_partition(np.eye(2), 3) == (0, 1)
    with pytest.raises(ValueError, match="finite"):
        kmeans_labels(np.full((3, 2), np.nan), 2, 0)
    with pytest.raises(ValueError, match="at least one cluster"):
        kmeans_labels(np.eye(3), 0, 0)


def test_spectral_equals_scikit_learn_and_finds_components():
    (rows,) = planted(3, 6, 1, gap=2.5)
    affinity = np.exp(-np.square(rows[:, None] - rows).sum(-1) / 4)
    theirs = SpectralClustering(3, affinity="precomputed", random_state=0).fit_predict(affinity)
    assert spectral_partition(affinity, 3, 0) == canonical(theirs.tolist())
    apart = np.kron(np.eye(3), np.ones((2, 2)))
    apart[4:, 4:] = 0  # the last two have no edges at all
    assert spectral_partition(apart, 4, 0) == (0, 0, 1, 1, 2, 3)
    with pytest.raises(ValueError, match="symmetric"):
        spectral_partition(np.array([[0.0, 1.0], [0.5, 0.0]]), 2, 0)
    with pytest.raises(ValueError, match="negative"):
        spectral_partition(-np.ones((2, 2)), 2, 0)


def test_hdbscan_noise_becomes_singletons():
    (rows,) = planted(2, 5, 0, gap=8.0)
    lone = np.concatenate([rows[:1] + 100, rows, rows[:1] - 90])
    assert hdbscan_partition(lone, 3) == (0, *[1] * 5, *[2] * 5, 3)
    with pytest.raises(ValueError, match="two clients"):
        hdbscan_partition(rows, 1)


def test_agreement_by_hand():
    labels, tasks = [0, 0, 0, 0, 1, 1], ["a", "a", "a", "b", "b", "b"]
    assert contingency(labels, tasks) == {0: {"a": 3, "b": 1}, 1: {"a": 0, "b": 2}}
    assert purity(labels, tasks) == (pytest.approx((3 / 4 + 1) / 2), pytest.approx(5 / 6))
    # Pairs together in both 3 + 1 = 4; in labels 6 + 1 = 7, in tasks 3 + 3 = 6, of 15 in all.
    chance = 7 * 6 / 15
    assert adjusted_rand(labels, tasks) == pytest.approx((4 - chance) / ((7 + 6) / 2 - chance))
    assert adjusted_rand([5, 5, 2], ["x", "x", "y"]) == 1.0
    with pytest.raises(ValueError, match="shorter"):
        purity([0, 1], ["a"])


def test_stability_tells_resamples_that_agree():
    assert bootstrap_stability(planted(3, 3, 0, resamples=4), 3, 0) == 1.0
    draw = np.random.default_rng(0)
    unrelated = [draw.standard_normal((12, 4)) for _ in range(8)]
    assert abs(bootstrap_stability(unrelated, 3, 0)) < 0.15
    assert bootstrap_stability(unrelated, 1, 0) == 1.0
    with pytest.raises(ValueError, match="two or more"):
        bootstrap_stability(unrelated[:1], 2, 0)
    with pytest.raises(ValueError, match="same clients"):
        bootstrap_stability([np.eye(3), np.eye(4)], 2, 0)


@pytest.mark.parametrize(("groups", "each"), [(3, 3), (2, 3)])
def test_planted_splits_are_real(groups, each):
    found = [
        split_is_real(planted(groups, each, seed, resamples=3), groups, ROTATED + seed, 59)
        for seed in SEEDS
    ]
    assert all(real == (observed > bar) for real, observed, bar in found)
    assert sum(not real for real, _, _ in found) <= 0.05 * len(SEEDS)


def test_one_task_is_not_split_however_stable_its_clients():
    federations = [planted(1, 9, seed, resamples=3, jitter=0.02) for seed in SEEDS]
    # The naive rule would split them: the chance differences come back in every resample.
    assert np.mean([bootstrap_stability(rows, 2, 0) for rows in federations[:5]]) > 0.8
    for k in (2, 3):
        wrong = sum(
            split_is_real(rows, k, ROTATED + seed, 59)[0] for seed, rows in enumerate(federations)
        )
        assert wrong <= 0.1 * len(SEEDS)


def test_the_error_level_does_not_depend_on_the_shape_of_the_noise():
    # The level is 5 % for any covariance; among 200 independent federations 10 % is 3.2 sigma off.
    wrong = [
        split_is_real(
            planted(1, 9, seed, resamples=2, rank=1 + 2 * (seed % 2)), k, ROTATED + seed, 19
        )
        for seed, k in enumerate([2, 2, 3, 3] * 50)
    ]
    assert np.mean([real for real, _, _ in wrong]) <= 0.1


def test_several_k_share_one_error_level():
    ks = range(2, 6)
    federations = [planted(1, 9, 50 + seed, resamples=2, rank=3) for seed in SEEDS]
    wrong = [real_splits(rows, ks, ROTATED + seed, 79) for seed, rows in enumerate(federations)]
    assert sum(any(real for real, _, _ in found.values()) for found in wrong) <= 0.1 * len(SEEDS)
    found = real_splits(planted(3, 3, 0, resamples=2), ks, 0, 79)
    assert list(found) == list(ks)
    assert found[3][0]
    with pytest.raises(ValueError, match="79 permutations"):
        real_splits(federations[0], ks, 0, 78)


def test_verdict_does_not_depend_on_the_order_of_clients_or_on_scale():
    rows = planted(2, 4, 3, gap=1.2, resamples=3)
    order = np.random.default_rng(0).permutation(8)
    first = split_is_real(rows, 2, 5, 39)
    assert split_is_real([part[order] for part in rows], 2, 5, 39) == pytest.approx(first)
    assert split_is_real([1e-6 * part for part in rows], 2, 5, 39) == pytest.approx(first)


def test_a_split_that_does_not_come_back_is_not_real():
    rows = planted(2, 4, 0, resamples=2)
    draw = np.random.default_rng(1)
    shuffled = [part[draw.permutation(8)] for part in rows]
    assert split_is_real(rows[:1], 2, 0, 59)[0]
    assert split_is_real(rows, 2, 0, 59)[0]
    assert not split_is_real(shuffled, 2, 0, 59)[0]
