"""The plan of very many clients, from sketches that are read a slab at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atlas.config.plan import ClusterSettings, FingerprintSettings
from atlas.federation.fingerprints.clusters import Clusters
from atlas.federation.fingerprints.clusters_sampled import group_many
from atlas.federation.fingerprints.compare import Prints, Sketches, compare_prints, part_names
from atlas.federation.fingerprints.compare_streamed import ReadSketches, compare_many


@dataclass(frozen=True)
class Crowd:
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
    crowd: Crowd, fingerprint: FingerprintSettings, clusters: ClusterSettings | None, seed: int
) -> tuple[Prints, Clusters | None]:
    """Compare and group very many clients.

    Args:
        crowd: Who they are.
        fingerprint: How fingerprints are compared.
        clusters: How clients are grouped; None: not at all.
        seed: Run seed.
    """
    names = part_names(crowd.labels, fingerprint)
    prints = compare_many(crowd.clients, crowd.read, names, fingerprint.dims)
    if clusters is None:
        return prints, None
    resamples = clusters.resamples

    def examine(some: Sequence[int]) -> Prints:
        sent = crowd.read(list(some))
        chosen = {
            crowd.clients[i]: {name: value[row] for name, value in sent.items()}
            for row, i in enumerate(some)
        }
        counts = [crowd.labels[i] for i in some]
        return compare_prints(chosen, counts, fingerprint, resamples=resamples, seed=seed)

    return prints, group_many(examine, prints.features, crowd.tasks, clusters, seed)


def stack_sketches(
    sketches: Sequence[Sketches], rows: slice | Sequence[int]
) -> Mapping[str, Tensor]:
    """Some clients' sketches by part [k, folds, width]; parts that not all have are left out."""
    chosen = sketches[rows] if isinstance(rows, slice) else [sketches[i] for i in rows]
    names = [name for name in chosen[0] if all(name in one for one in chosen)]
    return {name: torch.stack([one[name] for one in chosen]) for name in names}
