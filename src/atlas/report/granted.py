"""What a run granted to the clients of one cohort, in the order in which pictures show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atlas.config.capacity import MB
from atlas.report.figures.drawing import Events
from atlas.report.read.cohorts import Planned, colour, read_planned

OUTSIDE = "#8a94a1"
"""Colour of a client that the plan of clusters does not know."""


@dataclass(frozen=True)
class Granted:
    """One cohort's grants, its clients ordered by cluster, then id; those in none come last.

    Attributes:
        cohort: Its name.
        modules: Short names of the adapted modules.
        clients: Ids.
        labels: Cluster of each, None for a client in none; all zero without clusters.
        entries: The event of each.
        clusters: Each cluster with what is in it; empty without clusters.
    """

    cohort: str
    modules: tuple[str, ...]
    clients: tuple[str, ...]
    labels: tuple[int | None, ...]
    entries: tuple[Mapping[str, Any], ...]
    clusters: Mapping[int, str]

    @classmethod
    def read(
        cls,
        cohort: str,
        modules: Sequence[str],
        entries: Mapping[str, Mapping[str, Any]],
        planned: Planned | None,
    ) -> Granted:
        """From the `granted` events of a cohort, and its plan if it has one."""
        if planned is None or planned.clusters is None:
            labels: dict[str, int] = dict.fromkeys(entries, 0)
            names: dict[int, str] = {}
        else:
            labels = dict(zip(planned.clients, planned.labels, strict=True))
            names = planned.names()
        last = max(labels.values(), default=0) + 1
        clients = sorted(entries, key=lambda client: (labels.get(client, last), client))
        return cls(
            cohort=cohort,
            modules=short_names(modules),
            clients=tuple(clients),
            labels=tuple(labels.get(client) for client in clients),
            entries=tuple(entries[client] for client in clients),
            clusters=names,
        )

    @property
    def ranks(self) -> NDArray[np.float64]:
        """Clients by modules."""
        return np.array([entry["ranks"] for entry in self.entries], dtype=np.float64)

    @property
    def points(self) -> NDArray[np.float64]:
        """Budget in MB and mean rank of every client [n, 2]."""
        budgets = [entry["budget"] / MB for entry in self.entries]
        return np.column_stack([budgets, self.ranks.mean(1)])

    @property
    def devices(self) -> list[str]:
        """Device of every client; empty where the settings set the budget."""
        return [entry["device"] for entry in self.entries]

    @property
    def inks(self) -> list[str]:
        """Colour of every client."""
        return [OUTSIDE if label is None else colour(label) for label in self.labels]


def read_granted(events: Events) -> list[Granted]:
    """Every cohort with grants; the last ones where a run began anew."""
    latest = {event["client"]: event for event in events if event["event"] == "granted"}
    plans = {planned.cohort: planned for planned in read_planned(events)}
    cohorts: dict[str, Any] = {}
    for event in events:
        if event["event"] in ("started", "resumed"):
            cohorts |= event.get("cohorts") or {}
    found = []
    for name, facts in sorted(cohorts.items()):
        entries = {client: latest[client] for client in facts["clients"] if client in latest}
        if entries:
            found.append(Granted.read(name, facts["modules"], entries, plans.get(name)))
    return found


def short_names(modules: Sequence[str]) -> tuple[str, ...]:
    """Block and kind of each module, as in `4 query` for `encoder.layer.4.attention.self.query`.

    A kind is named by its last words, as few as tell it from all others.
    """
    kinds = [_kind(module) for module in modules]
    return tuple(
        " ".join([*_block(module), _short(kind, set(kinds))])
        for module, kind in zip(modules, kinds, strict=True)
    )


def _block(module: str) -> list[str]:
    return [part for part in module.split(".") if part.isdecimal()][:1]


def _kind(module: str) -> tuple[str, ...]:
    """The words after the block's number; `dense` says nothing where others stand before it."""
    parts = module.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    words = parts[numbers[0] + 1 :] if numbers else parts
    return tuple(words[:-1] if len(words) > 1 and words[-1] == "dense" else words)


def _short(kind: tuple[str, ...], kinds: set[tuple[str, ...]]) -> str:
    for count in range(1, len(kind)):
        if not any(other[-count:] == kind[-count:] for other in kinds - {kind}):
            return ".".join(kind[-count:])
    return ".".join(kind)
