"""Where in their ranks clients hold what they learned, as `mixed` events tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atlas.report.read.log import Events, events_of

Energy = Mapping[str, Any]
"""`bands`, and for each client `trained` and `mixed`: see docs/run-folder.md."""


@dataclass(frozen=True)
class EnergyGroup:
    """The clients of one largest rank.

    Attributes:
        rank: That rank.
        clients: Who they are.
        beyond: For each rank below it, by round the mean share of energy beyond that rank, as
            trained.
    """

    rank: int
    clients: tuple[str, ...]
    beyond: Mapping[int, Mapping[int, float]]


def read_energy(events: Events) -> dict[str, list[Mapping[str, Any]]]:
    """The `mixed` events that tell of energy, by cohort, one for a round, in order."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for event in events_of(events, "mixed"):
        if event.get("energy"):
            found.setdefault(str(event["cohort"]), {})[event["round"]] = event
    return {name: [own[n] for n in sorted(own)] for name, own in sorted(found.items())}


def energy_groups(
    mixed: Sequence[Mapping[str, Any]], ranks: Mapping[str, Sequence[int]]
) -> list[EnergyGroup]:
    """Clients by their largest rank, the largest first; those of the smallest have no beyond.

    Args:
        mixed: A cohort's events, of which there is one at least.
        ranks: Of every client; whoever is not in it counts as one of the largest.
    """
    edges = mixed[-1]["energy"]["bands"]
    held: dict[int, list[str]] = {}
    for client in mixed[-1]["clients"]:
        held.setdefault(max(ranks.get(client) or edges), []).append(client)
    found = []
    for rank in sorted(held, reverse=True):
        lower = [edge for edge in edges if edge < rank]
        beyond: dict[int, dict[int, float]] = {edge: {} for edge in lower}
        for event in mixed:
            bands, rows = event["energy"]["bands"], event["energy"]["trained"]
            own = [row for c, row in zip(event["clients"], rows, strict=True) if c in held[rank]]
            if own and bands == edges:
                rest = 1 - np.cumsum(np.mean(own, axis=0))
                for edge, share in zip(lower, rest, strict=False):
                    beyond[edge][event["round"]] = max(0.0, float(share))
        if lower:
            found.append(EnergyGroup(rank, tuple(held[rank]), beyond))
    return found
