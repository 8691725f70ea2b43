"""Groups of clients found in their fingerprints, and how far they agree with known groups.

Labels are numbered in order of first appearance, and k-means sees the rows sorted by value, so a
partition depends on who the clients are and not on the order in which they are listed.

scikit-learn is imported where it is called: it takes 50 MB, and most runs never group anybody.

Of very many clients a sample is grouped, and `extend_groups` places all others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Labels = tuple[int, ...]
_Group = TypeVar("_Group", bound=Hashable)

STARTS = 20
"""k-means restarts."""


@dataclass(frozen=True)
class KMetrics:
    """One partition and its internal metrics."""

    k: int
    silhouette: float
    davies_bouldin: float
    calinski_harabasz: float
    score: float
    labels: Labels


def as_points(features: Floats | Tensor) -> Floats:
    """Float64 rows [n, d], checked; no columns count as one column of zeros."""
    points = np.asarray(features, dtype=np.float64)
    if points.ndim != 2 or len(points) == 0:
        raise ValueError(f"features are [n, d] with n >= 1, not {points.shape}")
    if not np.isfinite(points).all():
        raise ValueError("features must be finite")
    return points if points.shape[1] else np.zeros((len(points), 1))


def canonical(labels: Sequence[Hashable]) -> Labels:
    """The same partition, its clusters numbered in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(label, len(numbers)) for label in labels)


def weighted_score(sil: float, db: float, ch: float) -> float:
    """Silhouette, Davies-Bouldin and Calinski-Harabasz in one number between 0 and 1."""
    return 0.5 * (sil + 1) / 2 + 0.3 / (1 + db) + 0.2 * ch / (ch + 1000)


def score_partition(features: Floats | Tensor, labels: Sequence[int]) -> KMetrics:
    """The metrics of a partition (scikit-learn's).

    With one cluster, or every client alone, none of them is defined: they and the score are 0,
    below any partition that can be judged.
    """
    points, numbered = as_points(features), canonical([int(label) for label in labels])
    if len(numbered) != len(points):
        raise ValueError(f"{len(numbered)} labels for {len(points)} clients")
    k = len(set(numbered))
    if k == 1 or k == len(points):
        return KMetrics(k, 0.0, 0.0, 0.0, 0.0, numbered)
    from sklearn import metrics

    sil = float(metrics.silhouette_score(points, numbered))
    db = float(metrics.davies_bouldin_score(points, numbered))
    ch = float(metrics.calinski_harabasz_score(points, numbered))
    return KMetrics(k, sil, db, ch, weighted_score(sil, db, ch), numbered)


def kmeans_labels(features: Floats | Tensor, k: int, seed: int) -> Labels:
    """k-means labels; points that are equal to the bit are never parted to make up k."""
    points = as_points(features)
    if k < 1:
        raise ValueError(f"a partition has at least one cluster, not {k}")
    distinct, which = np.unique(points, axis=0, return_inverse=True)
    if k >= len(distinct):
        return canonical(which.reshape(-1).tolist())
    from sklearn.cluster import KMeans

    order = np.lexsort(points.T[::-1])
    found = np.empty(len(points), dtype=np.int64)
    state = seed % 2**32
    found[order] = KMeans(k, n_init=STARTS, random_state=state).fit_predict(points[order])
    return canonical(found.tolist())


def spectral_partition(affinity: Floats | Tensor, k: int, seed: int) -> Labels:
    """Normalised spectral clustering (Ng, Jordan and Weiss 2001) of an affinity [n, n].

    Own eigenvectors rather than scikit-learn's: a graph that falls apart is a normal case here,
    and its components are then found exactly. A client without edges is a point of its own.
    """
    edges = as_points(affinity)
    if edges.shape[0] != edges.shape[1] or not np.allclose(edges, edges.T):
        raise ValueError("an affinity is a symmetric [n, n]")
    if edges.min() < 0:
        raise ValueError(f"affinities must not be negative, found {edges.min():.3g}")
    edges = (edges + edges.T) / 2
    degree = edges.sum(1)
    scale = np.divide(1.0, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)
    walk = scale[:, None] * edges * scale
    walk[np.diag_indices(len(walk))] += degree == 0  # a lone client: eigenvalue 1, as a component
    leading = np.linalg.eigh(walk)[1][:, -min(k, len(walk)) :]
    length = np.linalg.norm(leading, axis=1, keepdims=True)
    rows = np.divide(leading, length, out=np.zeros_like(leading), where=length > 0)
    # Equal rows come out of the eigensolver equal up to rounding only.
    return kmeans_labels(rows.round(10), k, seed)


def hdbscan_partition(features: Floats | Tensor, min_size: int) -> Labels:
    """HDBSCAN with clusters of at least `min_size`; noise points become singletons."""
    points = as_points(features)
    if min_size < 2:
        raise ValueError(f"the smallest cluster has at least two clients, not {min_size}")
    if len(points) < min_size:
        return tuple(range(len(points)))
    from sklearn.cluster import HDBSCAN

    found = HDBSCAN(min_cluster_size=min_size, copy=True).fit_predict(points).tolist()
    return canonical([("noise", i) if c < 0 else ("cluster", c) for i, c in enumerate(found)])


def contingency(labels: Sequence[int], groups: Sequence[_Group]) -> dict[int, dict[_Group, int]]:
    """How many clients of each known group are in each cluster: [cluster][group], zeros too."""
    pairs = list(zip(labels, groups, strict=True))
    names = dict.fromkeys(groups)
    table: dict[int, dict[_Group, int]] = {c: dict.fromkeys(names, 0) for c in sorted(set(labels))}
    for cluster, group in pairs:
        table[cluster][group] += 1
    return table


def purity(labels: Sequence[int], groups: Sequence[Hashable]) -> tuple[float, float]:
    """Share of a cluster's most frequent group: the mean over clusters, and weighted by size."""
    rows = [list(row.values()) for row in contingency(labels, groups).values()]
    if not rows:
        raise ValueError("no clients, no purity")
    mean = float(np.mean([max(row) / sum(row) for row in rows]))
    return mean, sum(max(row) for row in rows) / len(labels)


def adjusted_rand(labels: Sequence[int], groups: Sequence[Hashable]) -> float:
    """Agreement of two partitions over pairs of clients: 1 if equal, about 0 by chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(canonical(groups), canonical(labels)))


MINIBATCH = 1024
PASSES = 20
"""Most times that mini-batches go through all clients."""

JUDGED = 2000
"""Most clients by whom a partition is scored: a silhouette compares all pairs."""


def extend_groups(
    features: Floats | Tensor, sample: Sequence[int], labels: Sequence[int], seed: int
) -> Labels:
    """Group everybody by k-means in mini-batches that begins at the groups of a sample.

    A group of one in the sample says nothing of others and is left out, unless all are.

    Args:
        features: Of all clients [n, d].
        sample: Positions of the clients that have been grouped.
        labels: Their groups.
        seed: Of the mini-batches.

    Returns:
        A group for each client [n], by the names that `labels` have.
    """
    points, found = as_points(features), np.asarray(labels)
    names, counts = np.unique(found, return_counts=True)
    usable = names[counts > 1] if (counts > 1).any() else names
    if len(usable) == 1:
        return (int(usable[0]),) * len(points)
    rows = points[np.asarray(sample)]
    centres = np.stack([rows[found == name].mean(0) for name in usable])
    # Sorted by value, so that mini-batches do not depend on the order clients are listed in.
    order = np.lexsort(points.T[::-1])
    from sklearn.cluster import MiniBatchKMeans  # as in `clusters`

    model = MiniBatchKMeans(
        len(centres),
        init=centres,
        n_init=1,
        batch_size=MINIBATCH,
        max_iter=PASSES,
        reassignment_ratio=0.0,
        random_state=seed % 2**32,
    )
    placed = np.empty(len(points), dtype=np.int64)
    placed[order] = model.fit_predict(points[order])
    return tuple(usable[placed].tolist())


def extend_labels(
    features: Floats | Tensor, sample: Sequence[int], labels: Sequence[int], seed: int
) -> Labels:
    """The same, groups numbered in order of first appearance; see `extend_groups`."""
    return canonical(extend_groups(features, sample, labels, seed))


def score_sampled(features: Floats | Tensor, labels: Labels, seed: int) -> KMetrics:
    """`score_partition` by at most `JUDGED` clients, drawn by chance; labels are those of all."""
    points = as_points(features)
    if len(points) <= JUDGED:
        return score_partition(points, labels)
    drawn = np.sort(np.random.default_rng(seed).choice(len(points), JUDGED, replace=False))
    judged = score_partition(points[drawn], [labels[i] for i in drawn])
    return replace(judged, k=len(set(labels)), labels=labels)
