"""Who belongs together: clusters of fingerprints, each split held to a test.

A split counts only if it is useful and no cut through a cloud. Useful: members stand to gain more
from the others of their part than from all others, in a half of everybody's data that the parts
were not found in (`ops.clustering.gain`). Clients of one task then stay together though they
differ, and those that want opposite things are parted. No cut through a cloud: the split comes back
in the other half more clearly than splits of one Gaussian cloud do (it is real, see
`ops.clustering.stability`); or, as that test misses much where clients are few, members share with
their part at least half of what tells them from the whole. With `clusters.splits=real` all real
splits count, of use or not.

Among these the weighted score of silhouette, Davies-Bouldin and Calinski-Harabasz decides, times
the stability over resamples; without one there is one cluster. A cluster found so is looked at
again by itself, with fingerprints centred on its own members: what told it from others no longer
hides what tells its members apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from atlas.config.plan import ClusterSettings
from atlas.federation.fingerprints.compare import Centre, Prints
from atlas.federation.fingerprints.tree import Kin, Path, find_kin, number_kin
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
from atlas.ops.clustering.gain import Use, part_gains, useful_splits
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
        use: Whether members gain by it.
    """

    metrics: KMetrics
    stability: float
    real: bool
    share: float
    needed: float
    use: Use = Use()

    @property
    def kept(self) -> bool:
        """Whether the clients may be split so."""
        if self.use.useful is None:
            return self.real
        return self.use.useful and (self.real or self.use.lumps)

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
        first: Number of clusters of the first look, before any was split again; None where
            nothing was tried.
        paths: Where each cluster, by its number, went at every look; empty where nothing was tried.
        kin: What clusters that were one still have in common.
    """

    method: str
    labels: Labels
    metrics: KMetrics
    tried: tuple[Split, ...] = ()
    first: int | None = None
    paths: tuple[Path, ...] = ()
    kin: Kin = field(default_factory=dict)

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
        paths: Sequence[Path] = [(label,) for label in labels]
        part = partial(_examine_from, examine, prints.centre)
        if settings.k is None:
            paths = _refine(part, labels, inner or settings, seed)
        kin = find_kin(examine, paths, prints.centre)
    if settings.method == "permuted":
        order = generator(seed, "clusters", "permuted").permutation(len(labels))
        paths = [paths[i] for i in order]
    found = canonical(paths)
    numbers = dict(zip(paths, found, strict=True))
    return Clusters(
        settings.method,
        found,
        score_partition(prints.features, found),
        tuple(tried),
        first=len(set(labels)),
        paths=tuple(sorted(numbers, key=lambda path: numbers[path])),
        kin=number_kin(kin, numbers),
    )


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
    partition = partial(PARTITIONS[settings.method], ks=ks, settings=settings, draw=draw)
    metrics = [score_partition(prints.features, labels) for labels in partition(prints)]
    # A k that was asked for is obeyed, even where there is nothing to test: all alone, or together.
    tested = sorted({m.k for m in metrics if 2 <= m.k < n or settings.k is not None})
    if not tested:
        return []
    uses = [Use()] * len(metrics)
    if settings.splits == "useful":
        halves = [partition(replace(prints, features=half)) for half in prints.halves]
        uses = _judge_use(prints, metrics, list(zip(*reversed(halves), strict=True)), level)
        if prints.origin is not None and not any(use.useful for use in uses):
            return []  # a cluster stays whole, whether or not its parts are real
    verdicts = dict.fromkeys(tested, (False, 0.0, 0.0))
    # Of clusters that are looked at again nobody is told; rotations cost the most.
    if prints.origin is None or any(use.useful is not False and not use.lumps for use in uses):
        turns = int(generator(seed, "clusters", "rotations").integers(2**32))
        verdicts = real_splits(prints.halves, tested, turns, rotations(len(tested), level), level)
    return [
        Split(m, bootstrap_stability(prints.resamples, m.k, draw), *verdicts[m.k], use)
        for m, use in zip(metrics, uses, strict=True)
        if m.k in verdicts
    ]


def _judge_use(
    prints: Prints,
    metrics: Sequence[KMetrics],
    halves: Sequence[tuple[Labels, Labels]],
    level: float,
) -> list[Use]:
    """Whether members gain by splits.

    Args:
        prints: Their fingerprints.
        metrics: The splits, as found in the whole.
        halves: The splits, as found in the even half and in the odd half.
        level: The chance of a mistake, of use as of being real.
    """
    gradients = prints.gradients(prints.origin or prints.centre)
    found = []
    for split, use in zip(metrics, useful_splits(gradients, halves, level), strict=True):
        # The halves' verdict is on splits into k; the one in use may yet leave somebody worse off.
        worst = min(part_gains(gradients, split.labels).values())
        found.append(use._replace(useful=bool(use.useful) and worst > 0))
    return found


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
    """The kept split of most merit, of equals the smaller k; a k that was asked for is obeyed."""
    usable = [split for split in tried if split.kept or settings.k is not None]
    if not usable:
        return (0,) * n
    return max(usable, key=lambda split: (split.merit, -split.metrics.k)).metrics.labels


def _refine(examine: Examine, labels: Labels, settings: ClusterSettings, seed: int) -> list[Path]:
    """Split clusters further as long as the parts hold by themselves: where each client went."""
    found: list[Path] = [(own,) for own in labels]
    groups = [[i for i, own in enumerate(labels) if own == c] for c in sorted(set(labels))]
    if len(groups) == 1:
        return found
    large = [group for group in groups if len(group) >= FEWEST]
    for group in large:
        # The chance of any false split among these tests stays at the level of one.
        tried = try_splits(examine(group), settings, seed, LEVEL / len(large))
        inner = _pick(tried, settings, len(group))
        if len(set(inner)) == 1:
            continue
        parts = _refine(partial(_examine_part, examine, group), inner, settings, seed)
        for i, path in zip(group, parts, strict=True):
            found[i] += path
    return found


def _examine_part(examine: Examine, group: Sequence[int], some: Sequence[int]) -> Prints:
    return examine([group[i] for i in some])


def _examine_from(examine: Examine, origin: Centre, some: Sequence[int]) -> Prints:
    """Fingerprints of some clients, who know what the whole federation shares."""
    return replace(examine(some), origin=origin)


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
        "kept": split.kept,
        "useful": split.use.useful,
        "gain": split.use.gain,
        "gain_needed": split.use.needed,
        "gain_shared": split.use.shared,
        "share": split.share,
        "needed": split.needed,
    }
