"""What is found out before the first round: comparable fingerprints and clusters of them.

All of it is a pure function of the clients' sketches, the settings and the seed, so the sketches
alone are kept with the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from atlas.config.plan import ClusterSettings, FingerprintSettings
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.fingerprints.clusters import PURE, Clusters, describe, group_clients
from atlas.federation.fingerprints.clusters_sampled import (
    SAMPLE,
    SampledPlan,
    plan_many,
    stack_sketches,
)
from atlas.federation.fingerprints.compare import Prints, Sketches, compare_prints
from atlas.federation.fingerprints.tree import Kin, describe_tree
from atlas.federation.strategies.base import View
from atlas.federation.strategies.relations import affinity, neighbours
from atlas.ops.clustering.clusters import purity

MOST_NAMED = 5
"""Clients named in a warning; the rest is counted."""

LARGEST_LOGGED = 64
"""Square matrices are written into the events up to this many clients."""


@dataclass(frozen=True)
class CohortPlan:
    """What is known of the clients of one backbone.

    Attributes:
        sketches: What clients sent, by id; those who failed to are not in it.
        prints: The same made comparable; None if nobody answered.
        clusters: Groups of `prints.clients`; None if the strategy needs none.
    """

    sketches: dict[str, Sketches]
    prints: Prints | None = None
    clusters: Clusters | None = None

    def features(self, clients: Sequence[str]) -> Tensor | None:
        """Features in the order of `clients`, a zero row for one that is not known."""
        if self.prints is None:
            return None
        rows = dict(zip(self.prints.clients, self.prints.features, strict=True))
        nothing = torch.zeros_like(self.prints.features[0])
        return torch.stack([rows.get(client, nothing) for client in clients])

    @property
    def kin(self) -> Kin:
        """Factors on edges between clusters that were one."""
        return {} if self.clusters is None else self.clusters.kin

    @property
    def agreement(self) -> float | None:
        """How far the clients want the same, where just two are known."""
        return None if self.prints is None else self.prints.agreement()

    def labels(self, clients: Sequence[str]) -> tuple[int, ...] | None:
        """Clusters in the order of `clients`; one that is not known is alone."""
        if self.prints is None or self.clusters is None:
            return None
        known = dict(zip(self.prints.clients, self.clusters.labels, strict=True))
        lonely = max(known.values()) + 1
        return tuple(known.get(c, lonely + i) for i, c in enumerate(clients))


def plan_cohort(  # noqa: PLR0913
    sketches: Mapping[str, Sketches],
    cohort: Cohort,
    tasks: Mapping[str, str],
    fingerprint: FingerprintSettings,
    clusters: ClusterSettings | None,
    seed: int,
) -> CohortPlan:
    """Compare and group the clients whose sketches are at hand.

    Args:
        sketches: By client id.
        cohort: Who they are and how many labels they have.
        tasks: Task by client id: read by `oracle` alone, and to say how pure clusters are.
        fingerprint: How fingerprints are made and compared.
        clusters: How clients are grouped; None: not at all.
        seed: Run seed.
    """
    known = {client: sketches[client] for client in cohort.clients if client in sketches}
    if not known:
        return CohortPlan({})
    labels = {member.id: member.labels for member in cohort.members}
    clients = list(known)
    if len(clients) > SAMPLE:
        read = partial(stack_sketches, list(known.values()))
        sampled = SampledPlan(
            clients, read, [labels[c] for c in clients], [tasks[c] for c in clients]
        )
        return CohortPlan(known, *plan_many(sampled, fingerprint, clusters, seed))
    resamples = clusters.resamples if clusters else 2

    def examine(some: Sequence[int]) -> Prints:
        chosen = {clients[i]: known[clients[i]] for i in some}
        counts = [labels[client] for client in chosen]
        return compare_prints(chosen, counts, fingerprint, resamples=resamples, seed=seed)

    found = None
    if clusters is not None:
        found = group_clients(examine, [tasks[c] for c in clients], clusters, seed)
    return CohortPlan(known, examine(range(len(clients))), found)


def describe_planned(planned: CohortPlan, view: View, cohort: str) -> dict[str, object]:
    """The plan of one cohort as plain values, for the events and `atlas plan`.

    Args:
        planned: What was found.
        view: The same clients as a relation sees them.
        cohort: Name of their backbone.
    """
    prints = planned.prints
    if prints is None:
        nobody = "no client sent a usable fingerprint"
        return {"round": 0, "cohort": cohort, "clients": [], "warnings": [nobody]}
    tasks = dict(zip(view.clients, view.tasks, strict=True))
    warnings = prints.warnings()
    flat = prints.features[:, :2].tolist()
    entry: dict[str, object] = {
        "round": 0,
        "cohort": cohort,
        "clients": list(prints.clients),
        "tasks": [tasks[client] for client in prints.clients],
        "parts": {
            name: {"reliability": facts.reliability, "weight": facts.weight}
            for name, facts in prints.parts.items()
        },
        "explained": prints.explained,
        "points": [[*row, 0.0, 0.0][:2] for row in flat],
        "clusters": None,
    }
    own = [tasks[client] for client in prints.clients]
    if planned.clusters is not None:
        entry["clusters"] = describe_clusters(planned.clusters, own)
        warnings += cluster_warnings(planned.clusters, own)
        warnings += size_warnings(planned.clusters, prints.clients)
    if len(prints.clients) == len(view.clients) <= LARGEST_LOGGED:
        entry |= {"affinity": affinity(view).tolist(), "neighbours": neighbours(view).tolist()}
    return entry | {"warnings": warnings}


def describe_clusters(clusters: Clusters, tasks: Sequence[str]) -> dict[str, object]:
    """Clusters as plain values."""
    metrics = clusters.metrics
    judged = 1 < metrics.k < len(clusters.labels)
    return {
        "method": clusters.method,
        "k": metrics.k,
        "labels": list(clusters.labels),
        "silhouette": metrics.silhouette if judged else None,
        **clusters.compared(tasks),
        "tried": [describe(split) for split in clusters.tried],
        "first": clusters.first,
        "tree": describe_tree(clusters.paths) if clusters.paths else None,
        "kin": [[one, two, alike] for (one, two), alike in sorted(clusters.kin.items())],
    }


def cluster_warnings(clusters: Clusters, tasks: Sequence[str]) -> list[str]:
    """What a reader should know of how clusters and tasks agree."""
    mean, weighted = purity(clusters.labels, tasks)
    if min(mean, weighted) >= PURE:
        return []
    return [f"clusters hold several tasks: purity {mean:.2f}, by size {weighted:.2f}, below {PURE}"]


def size_warnings(clusters: Clusters, clients: Sequence[str]) -> list[str]:
    """Who has nobody, or one other, to learn from, and what that means for it."""
    members: dict[int, list[str]] = {}
    for client, label in zip(clients, clusters.labels, strict=True):
        members.setdefault(label, []).append(client)
    if len(clients) < 2:
        return []
    kin = {number for pair, alike in clusters.kin.items() if alike > 0 for number in pair}
    alone = [own[0] for label, own in members.items() if len(own) == 1 and label not in kin]
    near = [own[0] for label, own in members.items() if len(own) == 1 and label in kin]
    pairs = [one for own in members.values() if len(own) == 2 for one in own]
    found = []
    if alone:
        found.append(
            f"alone in a cluster: {named(alone)}; nobody's adapter is mixed into theirs, so the "
            "federation gives them nothing that training alone would not (relation.singletons="
            "joined gives them their nearest, whom they resemble little)"
        )
    if near:
        found.append(
            f"alone in a part of a cluster: {named(near)}; they learn from the other parts alone, "
            "by what they have in common"
        )
    if pairs:
        found.append(
            f"in a cluster of two: {named(pairs)}; each has one other to learn from, and the noise "
            "of both is halved at best"
        )
    return found


def named(clients: Sequence[str]) -> str:
    """The first few of them by name, the others counted."""
    more = len(clients) - MOST_NAMED
    return ", ".join(clients[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
