"""What a run planned for and granted to one cohort, in the order in which pictures show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atlas.config.plan import MB
from atlas.report.colours import cluster_slots, task_slots
from atlas.report.colours import colour as slot_colour
from atlas.report.read.log import Events, read_cohorts, read_tasks

UNKNOWN = "unknown"
MOST_NAMED = 3
"""Tasks named in a cluster's label; the rest is counted."""
MOST_LISTED = 12
"""Clusters in a legend."""


@dataclass(frozen=True)
class PlannedCohort:
    """One cohort's plan, its clients ordered by cluster, then id.

    Attributes:
        cohort: Its name.
        clients: Ids.
        tasks: Task of each, `unknown` where it was not recorded.
        labels: Cluster of each; all zero where none were planned.
        order: Where each client stands in the event's own lists.
        event: The event itself.
        slots: Palette slot of every cluster, that of its task where there is one.
    """

    cohort: str
    clients: tuple[str, ...]
    tasks: tuple[str, ...]
    labels: tuple[int, ...]
    order: tuple[int, ...]
    event: Mapping[str, Any]
    slots: Mapping[int, int]

    @classmethod
    def read(cls, event: Mapping[str, Any], run_tasks: Sequence[str] = ()) -> PlannedCohort:
        """From a `planned` event.

        Args:
            event: The event.
            run_tasks: Tasks of the whole run, whose colours are the same for every cohort.
        """
        ids: list[str] = event["clients"]
        tasks = event.get("tasks") or [None] * len(ids)
        found = event.get("clusters")
        labels: list[int] = found["labels"] if found else [0] * len(ids)
        order = sorted(range(len(ids)), key=lambda i: (labels[i], ids[i]))
        known = [task or UNKNOWN for task in tasks]
        return cls(
            cohort=event["cohort"],
            clients=tuple(ids[i] for i in order),
            tasks=tuple(known[i] for i in order),
            labels=tuple(labels[i] for i in order),
            order=tuple(order),
            event=event,
            slots=cluster_slots(labels, known, task_slots([*run_tasks, *known])),
        )

    def colour(self, label: int) -> str:
        """A cluster's colour in all pictures: that of its task, where it is a task's."""
        return slot_colour(self.slots[label])

    @property
    def clusters(self) -> Mapping[str, Any] | None:
        """The clusters as planned; None for a strategy without."""
        found: Mapping[str, Any] | None = self.event.get("clusters")
        return found

    @property
    def points(self) -> NDArray[np.float64]:
        """First two coordinates [n, 2]; two clients differ in one only, a lone one in none."""
        rows = [self.event["points"][i] for i in self.order]
        return np.array([[*row[:2], 0.0, 0.0][:2] for row in rows], dtype=np.float64)

    def matrix(self, key: str) -> NDArray[np.float64] | None:
        """A square field of the event; None where it is absent (too many clients)."""
        values = self.event.get(key)
        return None if values is None else self.arrange(values, self.event["clients"])

    def arrange(self, values: Sequence[Any], clients: Sequence[str]) -> NDArray[np.float64]:
        """Rows and columns given for `clients`, put into this order; NaN for who is missing."""
        given = np.array(values, dtype=np.float64)
        where = {client: i for i, client in enumerate(clients)}
        here = [i for i, client in enumerate(self.clients) if client in where]
        there = [where[self.clients[i]] for i in here]
        arranged = np.full((len(self.clients),) * 2, np.nan)
        arranged[np.ix_(here, here)] = given[np.ix_(there, there)]
        return arranged

    def borders(self) -> list[int]:
        """Places at which a new cluster begins."""
        return label_borders(self.labels)

    def names(self) -> dict[int, str]:
        """Each cluster with what is in it, as in `0: sst2 x3`."""
        held: dict[int, Counter[str]] = {}
        for label, task in zip(self.labels, self.tasks, strict=True):
            held.setdefault(label, Counter())[task] += 1
        return {label: f"{label}: {_counts_text(counts)}" for label, counts in held.items()}


def read_planned(events: Events) -> list[PlannedCohort]:
    """Every cohort's plan; the last one where a run began anew."""
    latest = {event["cohort"]: event for event in events if event["event"] == "planned"}
    tasks = list(read_tasks(events).values())
    return [
        PlannedCohort.read(latest[cohort], tasks)
        for cohort in sorted(latest)
        if latest[cohort]["clients"]
    ]


def read_signed(events: Events) -> list[PlannedCohort]:
    """Cohorts of a run whose clients sign in every round, ordered by task; their W are logged.

    Nothing is planned there, so tasks stand for clusters.
    """
    if not any(event["event"] == "signed" for event in events):
        return []
    tasks = read_tasks(events)
    latest = {e["cohort"]: e for e in events if e["event"] == "mixed" and "weights" in e}
    found = []
    for cohort, event in sorted(latest.items()):
        own = [tasks.get(client, UNKNOWN) for client in event["clients"]]
        numbers = {task: number for number, task in enumerate(sorted(set(own)))}
        labels = {"labels": [numbers[task] for task in own]}
        named = {"cohort": cohort, "clients": event["clients"], "tasks": own, "clusters": labels}
        found.append(PlannedCohort.read(named, list(tasks.values())))
    return found


def label_borders(labels: Sequence[int | None]) -> list[int]:
    """Places at which a label differs from the one before."""
    return [i for i in range(1, len(labels)) if labels[i] != labels[i - 1]]


def _counts_text(counts: Counter[str]) -> str:
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = [f"{task} x{count}" for task, count in common[:MOST_NAMED]]
    rest = sum(count for _, count in common[MOST_NAMED:])
    return ", ".join([*words, f"{rest} more"] if rest else words)


OUTSIDE = "#8a94a1"
"""Colour of a client that the plan of clusters does not know."""


@dataclass(frozen=True)
class GrantedCohort:
    """One cohort's grants, its clients ordered by cluster, then id; those in none come last.

    Attributes:
        cohort: Its name.
        modules: Short names of the adapted modules.
        clients: Ids.
        labels: Cluster of each, None for a client in none; all zero without clusters.
        entries: The event of each.
        clusters: Each cluster with what is in it; empty without clusters.
        slots: Palette slot of every cluster.
    """

    cohort: str
    modules: tuple[str, ...]
    clients: tuple[str, ...]
    labels: tuple[int | None, ...]
    entries: tuple[Mapping[str, Any], ...]
    clusters: Mapping[int, str]
    slots: Mapping[int, int]

    @classmethod
    def read(
        cls,
        cohort: str,
        modules: Sequence[str],
        entries: Mapping[str, Mapping[str, Any]],
        planned: PlannedCohort | None,
    ) -> GrantedCohort:
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
            slots=planned.slots if planned is not None and names else {0: 0},
        )

    @property
    def ranks(self) -> NDArray[np.float64]:
        """Clients by modules."""
        return np.array([entry["ranks"] for entry in self.entries], dtype=np.float64)

    @property
    def points(self) -> NDArray[np.float64]:
        """MB left for adapters and their training, and mean rank of every client [n, 2]."""
        left = [free_bytes(entry) / MB for entry in self.entries]
        return np.column_stack([left, self.ranks.mean(1)])

    @property
    def devices(self) -> list[str]:
        """Device of every client; empty where the settings set the budget."""
        return [entry["device"] for entry in self.entries]

    @property
    def inks(self) -> list[str]:
        """Colour of every client."""
        return [
            OUTSIDE if label is None else slot_colour(self.slots[label]) for label in self.labels
        ]


def free_bytes(entry: Mapping[str, Any]) -> float:
    """What a `granted` budget leaves above the part that no rank changes.

    Frozen weights and activations depend on the model and on how long a client's texts are; what is
    left is what its device has to give to adapters, their gradients and moments.
    """
    return float(entry["budget"] - (entry.get("weights") or 0) - (entry.get("activations") or 0))


def read_granted(events: Events) -> list[GrantedCohort]:
    """Every cohort with grants; the last ones where a run began anew."""
    latest = {event["client"]: event for event in events if event["event"] == "granted"}
    plans = {planned.cohort: planned for planned in read_planned(events)}
    found = []
    for name, facts in sorted(read_cohorts(events).items()):
        entries = {client: latest[client] for client in facts["clients"] if client in latest}
        if entries:
            found.append(GrantedCohort.read(name, facts["modules"], entries, plans.get(name)))
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
