"""Plan very many clients: sketches are read in turns, a sample is grouped, all are placed.

Whether a split is real and which k is best is decided on a sample, by the rules of `clusters`; a
test on more clients would tell smaller groups apart, at a cost beyond any use. What the sample is
split into further is found by halving alone, which needs far fewer rotations than trying all k.
A group of which the sample holds fewer than two is not found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atlas.config.plan import ClusterSettings, FingerprintSettings
from atlas.federation.fingerprints.clusters import KNOWN, Clusters, Examine, group_clients
from atlas.federation.fingerprints.compare import Prints, Sketches, compare_prints, part_names
from atlas.federation.fingerprints.compare_streamed import ReadSketches, compare_many
from atlas.federation.fingerprints.tree import number_kin
from atlas.ops.clustering.clusters import canonical, extend_groups, score_sampled
from atlas.runs.seeds import generator

SAMPLE = 128
"""Most clients that are grouped all together; of more, so many are."""


def group_many(
    examine: Examine,
    features: Tensor,
    tasks: Sequence[str],
    settings: ClusterSettings,
    seed: int,
) -> Clusters:
    """`clusters.group_clients` for more than `SAMPLE` clients.

    Args:
        examine: Gives the fingerprints of some clients.
        features: Of all of them [n, d].
        tasks: Task of each client, for `oracle` alone.
        settings: Method and limits.
        seed: Run seed.
    """
    scored = int(generator(seed, "clusters", "scored").integers(2**32))
    if settings.method in KNOWN:
        labels = KNOWN[settings.method](tasks)
        return Clusters(settings.method, labels, score_sampled(features, labels, scored))
    size = min(SAMPLE, len(tasks))
    drawn = generator(seed, "clusters", "sample").choice(len(tasks), size, replace=False)
    sample = sorted(drawn.tolist())

    def examine_sample(some: Sequence[int]) -> Prints:
        return examine([sample[i] for i in some])

    method = "kmeans" if settings.method == "permuted" else settings.method
    told = settings.model_copy(update={"method": method})
    halving = told.model_copy(update={"largest": 2})
    found = group_clients(examine_sample, [tasks[i] for i in sample], told, seed, halving)
    batches = int(generator(seed, "clusters", "mini-batches").integers(2**32))
    placed: Sequence[int] = extend_groups(features, sample, found.labels, batches)
    if settings.method == "permuted":
        order = generator(seed, "clusters", "permuted").permutation(len(placed))
        placed = [placed[i] for i in order]
    labels = canonical(placed)
    numbers = dict(zip(placed, labels, strict=True))
    names = {found.paths[name]: number for name, number in numbers.items()}
    kin = {(found.paths[a], found.paths[b]): alike for (a, b), alike in found.kin.items()}
    return Clusters(
        settings.method,
        labels,
        score_sampled(features, labels, scored),
        found.tried,
        first=found.first,
        paths=tuple(sorted(names, key=lambda path: names[path])),
        kin=number_kin(kin, names),
    )


@dataclass(frozen=True)
class SampledPlan:
    """Very many clients, and where to find what they sent.

    Attributes:
        clients: Ids.
        read: Gives the sketches of some of them.
        labels: Label count of each.
        tasks: Task of each, for `oracle` alone.
    """

    clients: Sequence[str]
    read: ReadSketches
    labels: Sequence[int]
    tasks: Sequence[str]


def plan_many(
    sampled: SampledPlan,
    fingerprint: FingerprintSettings,
    clusters: ClusterSettings | None,
    seed: int,
) -> tuple[Prints, Clusters | None]:
    """Compare and group very many clients.

    Args:
        sampled: Who they are.
        fingerprint: How fingerprints are compared.
        clusters: How clients are grouped; None: not at all.
        seed: Run seed.
    """
    names = part_names(sampled.labels, fingerprint)
    prints = compare_many(sampled.clients, sampled.read, names, fingerprint.dims)
    if clusters is None:
        return prints, None
    resamples = clusters.resamples

    def examine(some: Sequence[int]) -> Prints:
        sent = sampled.read(list(some))
        chosen = {
            sampled.clients[i]: {name: value[row] for name, value in sent.items()}
            for row, i in enumerate(some)
        }
        counts = [sampled.labels[i] for i in some]
        return compare_prints(chosen, counts, fingerprint, resamples=resamples, seed=seed)

    return prints, group_many(examine, prints.features, sampled.tasks, clusters, seed)


def stack_sketches(
    sketches: Sequence[Sketches], rows: slice | Sequence[int]
) -> Mapping[str, Tensor]:
    """Some clients' sketches by part [k, folds, width]; parts that not all have are left out."""
    chosen = sketches[rows] if isinstance(rows, slice) else [sketches[i] for i in rows]
    names = [name for name in chosen[0] if all(name in one for one in chosen)]
    return {name: torch.stack([one[name] for one in chosen]) for name in names}
