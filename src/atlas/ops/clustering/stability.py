"""Is a split of the clients more than the clients' own scatter?

A split of clients that differ by chance alone can be perfectly stable: chance was drawn once, and
every resample of a client's batches sees the same draw. Stability is therefore necessary and not
sufficient, and permuting client names, under which no split is stable, is the wrong null.

The null used here: a fingerprint is a mean over many batches, so clients of one task are
independent draws from one Gaussian whose mean and covariance are unknown. All resamples of a
client put side by side are one such row; the n rows together, centred, then have the same
distribution after any rotation Q that mixes *clients* (orthogonal, fixing the mean). Given the
sample covariance, which Q leaves as it is to the last digit, every Q is equally likely. Comparing
a statistic with its values under random Q is thus an exact test for any covariance: noise may fill
64 dimensions or lie on a line, and may be shared by the resamples or not (Langsrud 2005, "Rotation
tests"; it is SigClust, Liu et al. 2008, without its need to estimate a covariance from a handful
of clients). Q destroys the one thing that makes groups, rows gathered in lumps, and nothing else.
Permuting each principal component among the clients would not: two groups lie along a single
component, and its values are as bimodal after a permutation as before.

The statistic is the share of the spread in the leading k - 1 components, where k lumps must show,
that the split found in one resample explains in *another*. It falls when the split does not come
back (instability) and when it comes back but cuts through one cloud (no separation).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from itertools import permutations as ordered

import numpy as np
import scipy
from numpy.typing import NDArray
from torch import Tensor

from atlas.ops.clustering.clusters import Floats, adjusted_rand, as_points, kmeans_labels
from atlas.ops.sketch import FLAT

LEVEL = 0.05
"""How often clients of one task may be split by mistake."""

LLOYD_STEPS = 100


def bootstrap_stability(
    features_by_resample: Sequence[Floats | Tensor], k: int, seed: int
) -> float:
    """Mean adjusted Rand index over pairs of resamples, each split by k-means.

    Args:
        features_by_resample: The clients' fingerprints [n, d] from two or more resamples.
        k: Clusters.
        seed: Of k-means.
    """
    points = _resamples(features_by_resample)
    if len(points) < 2:
        raise ValueError("stability needs two or more resamples")
    found = [kmeans_labels(rows, k, seed) for rows in points]
    return float(np.mean([adjusted_rand(a, b) for a, b in combinations(found, 2)]))


def real_splits(
    features_by_resample: Sequence[Floats | Tensor],
    ks: Sequence[int],
    seed: int,
    permutations: int,
    level: float = LEVEL,
) -> dict[int, tuple[bool, float, float]]:
    """Which numbers of groups stand out from one Gaussian cloud (the null is at the file's top).

    One of them may be picked afterwards by looking at the same clients. One cluster, a cluster for
    every client, or clients that are all alike are never a real split.

    The chance that *any* k splits one cloud is at most `level`: the same rotations serve every k,
    and the bar is set on the smallest p-value of each rotation (Westfall and Young's min-p).

    Args:
        features_by_resample: The clients' fingerprints [n, d], one or more resamples, the same
            clients in the same order. A single one is judged where the split was found.
        ks: Numbers of clusters.
        seed: Of the random rotations.
        permutations: How many rotations, at least len(ks) / level - 1.
        level: The chance of a mistake.

    Returns:
        Verdict, observed share and the share to exceed, by k.
    """
    points = _resamples(features_by_resample)
    if permutations + 1 < round(len(ks) / level):
        least = round(len(ks) / level) - 1
        raise ValueError(f"{len(ks)} splits need {least} permutations or more, not {permutations}")
    n = len(points[0])
    # Sorted by value, so that the rotations do not depend on the order clients are listed in.
    order = np.lexsort(np.concatenate(points, axis=1).T[::-1])
    frame = _contrasts(n)
    scores = [_components(frame, rows[order]) for rows in points]
    tried = [k for k in ks if 2 <= k < n] if any(part.any() for part in scores) else []
    verdicts = dict.fromkeys(ks, (False, 0.0, 0.0))
    if not tried:
        return verdicts
    draw = np.random.default_rng(seed)
    turns = [np.eye(n - 1), *(_rotation(n - 1, draw) for _ in range(permutations))]
    # Row 0 is what was observed.
    shares = np.array([_shares([frame @ turn @ part for part in scores], tried) for turn in turns])
    chance = (shares[None] >= shares[:, None]).mean(1)
    least_chance = chance.min(1)
    levels = [c for c in np.unique(least_chance) if (least_chance <= c).mean() <= level]
    bar = max(levels, default=0.0)
    for column, k in enumerate(tried):
        beyond = shares[chance[:, column] > bar, column].max()
        observed = shares[0, column]
        verdicts[k] = (bool(observed > beyond), float(observed), float(beyond))
    return verdicts


def _resamples(features_by_resample: Sequence[Floats | Tensor]) -> list[Floats]:
    points = [as_points(features) for features in features_by_resample]
    if not points or len({len(rows) for rows in points}) > 1:
        raise ValueError("resamples hold the same clients, and there is at least one")
    return points


def _contrasts(n: int) -> Floats:
    """An orthonormal basis [n, n - 1] of all that is orthogonal to the mean."""
    basis: Floats = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0][:, 1:]
    return basis


def _components(frame: Floats, rows: Floats) -> Floats:
    """Scores of all components, the largest first, in the frame; zero where all are alike."""
    centred = frame.T @ rows
    if np.linalg.norm(centred) <= FLAT * np.linalg.norm(rows):
        return np.zeros((len(centred), 1))
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    scores: Floats = left * sizes
    return scores


def _rotation(size: int, draw: np.random.Generator) -> Floats:
    """A uniformly random orthogonal matrix (Mezzadri 2007: QR with the signs put right)."""
    q, r = np.linalg.qr(draw.standard_normal((size, size)))
    turned: Floats = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return turned


def _shares(scores: list[Floats], ks: list[int]) -> list[float]:
    return [_reproduced([part[:, : k - 1] for part in scores], k) for k in ks]


def _reproduced(scores: list[Floats], k: int) -> float:
    """Mean share of one resample's spread explained by the split of another."""
    splits = [_split(rows, k) for rows in scores]
    pairs = list(ordered(range(len(scores)), 2)) or [(0, 0)]
    return float(np.mean([_explained(scores[there], splits[here]) for here, there in pairs]))


def _split(rows: Floats, k: int) -> NDArray[np.int64]:
    """k-means from Ward's clusters: without restarts, as this runs for every rotation."""
    hierarchy = scipy.cluster.hierarchy
    tree = hierarchy.ward(rows)
    labels: NDArray[np.int64] = hierarchy.fcluster(tree, k, criterion="maxclust").astype(np.int64)
    for _ in range(LLOYD_STEPS):
        member = _membership(labels)
        centres = member.T @ rows / member.sum(0)[:, None]
        nearest = np.square(rows[:, None] - centres).sum(-1).argmin(1)
        if (member.argmax(1) == nearest).all():
            break
        labels = nearest
    return labels


def _membership(labels: NDArray[np.int64]) -> Floats:
    """One column per cluster that has a member, [n, k]."""
    member: Floats = (labels[:, None] == np.unique(labels)).astype(np.float64)
    return member


def _explained(rows: Floats, labels: NDArray[np.int64]) -> float:
    total = float(np.square(rows).sum())
    if total == 0.0:
        return 0.0
    member = _membership(labels)
    centres = member.T @ rows / member.sum(0)[:, None]
    return 1.0 - float(np.square(rows - member @ centres).sum()) / total
