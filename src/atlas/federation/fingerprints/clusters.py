"""Who belongs together: clusters of fingerprints, each split held to a test.

A split counts only if it is real: if it comes back in the other half of every client's data more
clearly than splits of one Gaussian cloud do (`ops.clustering.stability`). Among real splits the
weighted score of silhouette, Davies-Bouldin and Calinski-Harabasz decides, times the stability over
resamples; without a real split there is one cluster. A cluster found so is looked at again by
itself, with fingerprints centred on its own members: what told it from others no longer hides what
tells its members apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from atlas.config.plan import ClusterSettings
from atlas.federation.fingerprints.compare import Prints
from atlas.ops.clustering.clusters import (
    KMetrics,
    Labels,
    adjusted_rand,
    canonical,
    contingency,
    hdbscan_partition,
    kmeans_labels,
    purity,
    score_partition,
    spectral_partition,
)
from atlas.ops.clustering.stability import LEVEL, bootstrap_stability, real_splits
from atlas.ops.graph.affinity import rbf
from atlas.runs.cores import undivided_numpy
from atlas.runs.seeds import generator

PURE = 0.8
"""Below this purity a plan warns."""

FEWEST = 4
"""A cluster of fewer clients is not looked at again: three points split into two every time."""

Examine = Callable[[Sequence[int]], Prints]
"""Fingerprints of some clients (by position) as if they were the whole federation."""


@dataclass(frozen=True)
class Split:
    """One k that was tried: its metrics, and whether the split is real.

    Attributes:
        metrics: Internal metrics and labels.
        stability: Mean adjusted Rand index between bootstrap resamples.
        real: Whether the split exceeds what one cloud would show.
        share: Spread explained in the other half.
        needed: What that share has to exceed.
    """

    metrics: KMetrics
    stability: float
    real: bool
    share: float
    needed: float

    @property
    def merit(self) -> float:
        """By what a k is chosen: how well the split separates, as far as it comes back.

        The score alone likes clusters of one, which have no spread; they do not come back.
        """
        return self.metrics.score * max(0.0, self.stability)


@dataclass(frozen=True)
class Clusters:
    """The clusters of one backbone's clients.

    Attributes:
        method: How they were found.
        labels: Cluster of each client.
        metrics: Internal metrics of those labels.
        tried: Every k tried for the whole federation; empty where nothing was tried.
    """

    method: str
    labels: Labels
    metrics: KMetrics
    tried: tuple[Split, ...] = ()

    def compared(self, tasks: Sequence[str]) -> dict[str, object]:
        """Agreement with known tasks, as plain values."""
        mean, weighted = purity(self.labels, tasks)
        table = contingency(self.labels, tasks)
        return {
            "purity": {"mean": mean, "weighted": weighted},
            "ari": adjusted_rand(self.labels, tasks),
            "table": {str(cluster): dict(row) for cluster, row in table.items()},
        }


def group_clients(
    examine: Examine,
    tasks: Sequence[str],
    settings: ClusterSettings,
    seed: int,
    inner: ClusterSettings | None = None,
) -> Clusters:
    """Clusters by the method the settings name.

    Args:
        examine: Gives the fingerprints of all or some clients.
        tasks: Task of each client, for `oracle` alone.
        settings: Method and limits.
        seed: Run seed.
        inner: Method and limits for splitting clusters further, if others.
    """
    prints = examine(range(len(tasks)))
    if settings.method in KNOWN:
        labels = KNOWN[settings.method](tasks)
        return Clusters(settings.method, labels, score_partition(prints.features, labels))
    with undivided_numpy():
        tried = try_splits(prints, settings, seed, LEVEL)
        labels = _pick(tried, settings, len(tasks))
        if settings.k is None:
            labels = _refine(examine, labels, inner or settings, seed)
    if settings.method == "permuted":
        order = generator(seed, "clusters", "permuted").permutation(len(labels))
        labels = canonical([labels[i] for i in order])
    return Clusters(settings.method, labels, score_partition(prints.features, labels), tuple(tried))


KNOWN: Mapping[str, Callable[[Sequence[str]], Labels]] = {
    "oracle": canonical,
    "one": lambda tasks: (0,) * len(tasks),
}
"""Methods that look at no fingerprint."""


def try_splits(prints: Prints, settings: ClusterSettings, seed: int, level: float) -> list[Split]:
    """Every k with its metrics, stability and test; with a k that is given, that k alone."""
    n = len(prints.clients)
    ks = range(2, min(settings.largest, n - 1) + 1) if settings.k is None else [settings.k]
    draw = int(generator(seed, "clusters", "k-means").integers(2**32))
    partitions = PARTITIONS[settings.method](prints, ks, settings, draw)
    metrics = [score_partition(prints.features, labels) for labels in partitions]
    # A k that was asked for is obeyed, even where there is nothing to test: all alone, or together.
    tested = sorted({m.k for m in metrics if 2 <= m.k < n or settings.k is not None})
    if not tested:
        return []
    turns = int(generator(seed, "clusters", "rotations").integers(2**32))
    verdicts = real_splits(prints.halves, tested, turns, rotations(len(tested), level), level)
    return [
        Split(found, bootstrap_stability(prints.resamples, found.k, draw), *verdicts[found.k])
        for found in metrics
        if found.k in verdicts
    ]


def rotations(tests: int, level: float) -> int:
    """How many rotations it takes to tell a chance of `level` / tests, with some to spare."""
    return max(199, round(2 * tests / level) - 1)


def _by_kmeans(
    prints: Prints, ks: Sequence[int], settings: ClusterSettings, draw: int
) -> list[Labels]:
    del settings
    return [kmeans_labels(prints.features, k, draw) for k in ks]


def _by_spectral(
    prints: Prints, ks: Sequence[int], settings: ClusterSettings, draw: int
) -> list[Labels]:
    del settings
    affinity = rbf(prints.features, 1.0)
    return [spectral_partition(affinity, k, draw) for k in ks]


def _by_hdbscan(
    prints: Prints, ks: Sequence[int], settings: ClusterSettings, draw: int
) -> list[Labels]:
    del ks, draw  # it finds its own number
    return [hdbscan_partition(prints.features, settings.smallest)]


PARTITIONS = {
    "kmeans": _by_kmeans,
    "permuted": _by_kmeans,
    "spectral": _by_spectral,
    "hdbscan": _by_hdbscan,
}


def _pick(tried: Sequence[Split], settings: ClusterSettings, n: int) -> Labels:
    """The real split of most merit, of equals the smaller k; a k that was asked for is obeyed."""
    usable = [split for split in tried if split.real or settings.k is not None]
    if not usable:
        return (0,) * n
    return max(usable, key=lambda split: (split.merit, -split.metrics.k)).metrics.labels


def _refine(examine: Examine, labels: Labels, settings: ClusterSettings, seed: int) -> Labels:
    """Split clusters further as long as the parts are real by themselves."""
    groups = [[i for i, own in enumerate(labels) if own == c] for c in sorted(set(labels))]
    if len(groups) == 1:
        return labels
    large = [group for group in groups if len(group) >= FEWEST]
    found: dict[int, tuple[int, ...]] = {i: (own,) for i, own in enumerate(labels)}
    for group in large:
        # The chance of any false split among these tests stays at the level of one.
        tried = try_splits(examine(group), settings, seed, LEVEL / len(large))
        inner = _pick(tried, settings, len(group))
        if len(set(inner)) > 1:
            inner = _refine(partial(_examine_part, examine, group), inner, settings, seed)
        for i, own in zip(group, inner, strict=True):
            found[i] += (own,)
    return canonical([found[i] for i in range(len(labels))])


def _examine_part(examine: Examine, group: Sequence[int], some: Sequence[int]) -> Prints:
    return examine([group[i] for i in some])


def describe(split: Split) -> dict[str, object]:
    """A split as plain values."""
    m = split.metrics
    return {
        "k": m.k,
        "silhouette": m.silhouette,
        "davies_bouldin": m.davies_bouldin,
        "calinski_harabasz": m.calinski_harabasz,
        "score": m.score,
        "stability": split.stability,
        "merit": split.merit,
        "real": split.real,
        "share": split.share,
        "needed": split.needed,
    }
