"""A newcomer to a federation that has finished: where it belongs, and what it starts from.

The newcomer is compared with everybody in one feature space. Clusters stay as they were found;
the newcomer goes to the one whose members are nearest to it on average, and its first adapter is
the mixture of its neighbours there. Nobody else's adapter changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from atlas.config.plan import RelationSettings
from atlas.federation.adapters.adapter import Adapter
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.fingerprints.compare import Prints
from atlas.federation.fingerprints.tree import Kin
from atlas.federation.mixing.apply import mix_cohort
from atlas.federation.strategies.base import View
from atlas.federation.strategies.relations import affinity, neighbours

OUTSIDE = 0.5
"""Below this share of what the least typical member has in common with its cluster, a newcomer
fits it badly."""


@dataclass(frozen=True)
class Place:
    """Where a newcomer belongs.

    Attributes:
        cluster: Its cluster; None where the strategy has none.
        affinities: Mean affinity to the members of every cluster.
        neighbours: Share of each neighbour in the first adapter; empty if it has none.
        outsider: Whether even the nearest cluster is far.
    """

    cluster: int | None
    affinities: dict[int, float]
    neighbours: dict[str, float]
    outsider: bool = False


NO_KIN: Kin = {}


def find_place(
    newcomer: str,
    prints: Prints,
    clusters: Mapping[str, int] | None,
    settings: RelationSettings,
    kin: Kin = NO_KIN,
) -> Place:
    """Compare a newcomer with those who are there.

    Args:
        newcomer: Its id.
        prints: Comparable fingerprints of everybody, the newcomer among them.
        clusters: Cluster of everybody else; None where there are no clusters.
        settings: How affinities become neighbours.
        kin: Factors on edges between clusters that were one.
    """
    if clusters is None:
        return Place(None, {}, _neighbours(newcomer, _view(prints, None, settings)))
    # Where there is but one cluster, that is the newcomer's; else which it has makes no difference.
    alike = _alike(prints, {**clusters, newcomer: min(clusters.values())}, settings)
    groups: dict[int, list[str]] = {}
    for client, cluster in sorted(clusters.items()):
        groups.setdefault(cluster, []).append(client)
    affinities = {c: _mean(alike, newcomer, groups[c]) for c in sorted(groups)}
    nearest = max(affinities, key=lambda cluster: affinities[cluster])
    members = groups[nearest]
    # A cluster of one says nothing of how far apart its members may be.
    within = [_mean(alike, m, [o for o in members if o != m]) for m in members if members != [m]]
    outsider = bool(within) and affinities[nearest] < OUTSIDE * min(within)
    view = _view(prints, {**clusters, newcomer: nearest}, settings, kin)
    return Place(nearest, affinities, _neighbours(newcomer, view), outsider)


def first_adapter(
    cohort: Cohort, newcomer: str, shares: Mapping[str, float], *, heads: str
) -> Adapter:
    """The mixture of the neighbours' adapters, cut to the newcomer's ranks.

    Args:
        cohort: The neighbours' final adapters and the shared start as the newcomer's.
        newcomer: Its id.
        shares: What each neighbour counts, together one; empty leaves the shared start.
        heads: As in `mix_cohort`. A newcomer none of whose neighbours has its labels keeps the
            head of the shared start.
    """
    weights = torch.eye(len(cohort.clients), dtype=torch.float64)
    if shares:
        row = [shares.get(client, 0.0) for client in cohort.clients]
        weights[cohort.clients.index(newcomer)] = torch.tensor(row, dtype=torch.float64)
    return mix_cohort(cohort, weights, space="product", heads=heads).take(newcomer)


def _alike(
    prints: Prints, clusters: Mapping[str, int], settings: RelationSettings
) -> dict[str, dict[str, float]]:
    """Affinity of all pairs; a relation to which fingerprints do not count cannot place anybody."""
    if settings.affinity != "cosine":
        # Distances as they are: who is an outsider must not depend on how close the others are.
        settings = settings.model_copy(update={"affinity": "rbf", "scale": "unit"})
    rows = affinity(_view(prints, clusters, settings)).tolist()
    names = prints.clients
    return {a: dict(zip(names, row, strict=True)) for a, row in zip(names, rows, strict=True)}


def _mean(alike: Mapping[str, Mapping[str, float]], client: str, others: list[str]) -> float:
    return sum(alike[client][other] for other in others) / len(others)


def _neighbours(newcomer: str, view: View) -> dict[str, float]:
    rows: Tensor = neighbours(view)
    shares = dict(zip(view.clients, rows[view.clients.index(newcomer)].tolist(), strict=True))
    return {client: share for client, share in shares.items() if share and client != newcomer}


def _view(
    prints: Prints,
    labels: Mapping[str, int] | None,
    settings: RelationSettings,
    kin: Kin = NO_KIN,
) -> View:
    """The joint view; how many examples anybody has does not count among neighbours."""
    clients = prints.clients
    return View(
        clients=clients,
        examples=torch.ones(len(clients), dtype=torch.float64),
        tasks=("",) * len(clients),
        round=0,
        features=prints.features,
        clusters=None if labels is None else tuple(labels[client] for client in clients),
        settings=settings,
        kin=kin,
        agreement=prints.agreement if settings.affinity == "cosine" else None,
    )
