"""What is found out before the first round: comparable fingerprints and clusters of them.

All of it is a pure function of the clients' sketches, the settings and the seed, so the sketches
alone are kept with the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from atlas.config.plan import ClusterSettings, FingerprintSettings
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.fingerprints.clusters import Clusters, describe, group_clients
from atlas.federation.fingerprints.clusters_sampled import (
    SAMPLE,
    SampledPlan,
    plan_many,
    stack_sketches,
)
from atlas.federation.fingerprints.compare import Prints, Sketches, compare_prints
from atlas.federation.fingerprints.tree import Kin, describe_tree
from atlas.federation.fingerprints.warnings import (
    FEW,
    cluster_warnings,
    heard_by,
    size_warnings,
)
from atlas.federation.strategies.base import Relation, View
from atlas.federation.strategies.relations import affinity, neighbours
from atlas.federation.strategies.scales import kin_of

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

    def kin_by(self, labels: Mapping[str, int]) -> Kin:
        """The same by the numbers that clusters have in `labels`, a cluster by client."""
        if self.prints is None or self.clusters is None:
            return {}
        pairs = zip(self.prints.clients, self.clusters.labels, strict=True)
        numbers = {own: labels[client] for client, own in pairs if client in labels}
        return {
            (numbers[a], numbers[b]): factor
            for (a, b), factor in self.kin.items()
            if a in numbers and b in numbers
        }

    def agreement(self, clients: Sequence[str]) -> Tensor | None:
        """How far every two want the same [n, n]; nothing for one that is not known."""
        if self.prints is None or self.prints.agreement is None:
            return None
        place = {client: number for number, client in enumerate(self.prints.clients)}
        known = [i for i, client in enumerate(clients) if client in place]
        rows = torch.tensor([place[clients[i]] for i in known], dtype=torch.long)
        found = self.prints.agreement.new_zeros(len(clients), len(clients))
        where = torch.tensor(known, dtype=torch.long, device=found.device)
        found[where[:, None], where] = self.prints.agreement[rows[:, None], rows]
        return found

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


def describe_planned(
    planned: CohortPlan, view: View, cohort: str, learn: Relation | None = None
) -> dict[str, object]:
    """The plan of one cohort as plain values, for the events and `atlas plan`.

    Args:
        planned: What was found.
        view: The same clients as a relation sees them.
        cohort: Name of their backbone.
        learn: Says who learns from whom, where that hangs on the clusters.
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
        # Of very many clients W takes long, so it is made only if there is something to look for.
        smallest = min(Counter(planned.clusters.labels).values())
        if learn is not None and (smallest <= FEW or len(view.clients) <= LARGEST_LOGGED):
            heard = heard_by(view.clients, learn(view))
            warnings += size_warnings(planned.clusters, prints.clients, heard, kin_of(view))
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
