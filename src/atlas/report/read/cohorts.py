"""What a run planned for one cohort, in the order in which pictures show its clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atlas.report.figures.drawing import PALETTE, Events

UNKNOWN = "unknown"
MOST_NAMED = 3
"""Tasks named in a cluster's label; the rest is counted."""
MOST_LISTED = 12
"""Clusters in a legend."""


@dataclass(frozen=True)
class Planned:
    """One cohort's plan, its clients ordered by cluster, then id.

    Attributes:
        cohort: Its name.
        clients: Ids.
        tasks: Task of each, `unknown` where it was not recorded.
        labels: Cluster of each; all zero where none were planned.
        order: Where each client stands in the event's own lists.
        event: The event itself.
    """

    cohort: str
    clients: tuple[str, ...]
    tasks: tuple[str, ...]
    labels: tuple[int, ...]
    order: tuple[int, ...]
    event: Mapping[str, Any]

    @classmethod
    def read(cls, event: Mapping[str, Any]) -> Planned:
        """From a `planned` event."""
        ids: list[str] = event["clients"]
        tasks = event.get("tasks") or [None] * len(ids)
        found = event.get("clusters")
        labels: list[int] = found["labels"] if found else [0] * len(ids)
        order = sorted(range(len(ids)), key=lambda i: (labels[i], ids[i]))
        return cls(
            cohort=event["cohort"],
            clients=tuple(ids[i] for i in order),
            tasks=tuple(tasks[i] or UNKNOWN for i in order),
            labels=tuple(labels[i] for i in order),
            order=tuple(order),
            event=event,
        )

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


def read_planned(events: Events) -> list[Planned]:
    """Every cohort's plan; the last one where a run began anew."""
    latest = {event["cohort"]: event for event in events if event["event"] == "planned"}
    return [Planned.read(latest[cohort]) for cohort in sorted(latest) if latest[cohort]["clients"]]


def label_borders(labels: Sequence[int | None]) -> list[int]:
    """Places at which a label differs from the one before."""
    return [i for i in range(1, len(labels)) if labels[i] != labels[i - 1]]


def colour(label: int) -> str:
    """A cluster's colour in all pictures; many clusters share, as more could not be told apart."""
    return PALETTE[label % len(PALETTE)]


def _counts_text(counts: Counter[str]) -> str:
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = [f"{task} x{count}" for task, count in common[:MOST_NAMED]]
    rest = sum(count for _, count in common[MOST_NAMED:])
    return ", ".join([*words, f"{rest} more"] if rest else words)
