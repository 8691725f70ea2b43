"""What one finished run of a study tells."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlas.config.grid import Case
from atlas.jobs.show import describe_run
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder

Distance = dict[str, dict[str, float]]
SIDES = ("trained", "mixed")


@dataclass(frozen=True)
class Outcome:
    """A finished run: what was compared in it, its summary, and the task of every client.

    Attributes:
        distance: How far apart clients of one cluster were in the first and in the last round,
            as trained and as mixed; None where the run did not say.
        error: How far mixtures were from the exact ones, relative to those, averaged over clients,
            cohorts and rounds; None where nothing was mixed.
    """

    case: Case
    summary: dict[str, Any]
    tasks: Mapping[str, str]
    distance: Distance | None = None
    error: float | None = None

    @property
    def arm(self) -> str:
        """What is compared, whatever the seed."""
        return self.case.name

    def task_means(self, part: str) -> dict[str, float]:
        """The clients' `score`, `majority` or `alone`, averaged task by task."""
        return mean_by_key({self.task_of(c): v} for c, v in self.summary[part]["clients"].items())

    def task_of(self, client: str) -> str:
        """A client's task; its own name stands in where the run's events are lost."""
        return self.tasks.get(client, client)


def read_outcome(case: Case, folder: RunFolder, summary: dict[str, Any]) -> Outcome:
    """A finished run as its folder holds it."""
    events = read_events(folder.events) if folder.events.exists() else []
    tasks = describe_run(folder)["tasks"]
    return Outcome(case, summary, tasks, ends_of_distance(events), mean_error(events))


def ends_of_distance(events: Sequence[Mapping[str, Any]]) -> Distance | None:
    """The distances of the first and the last round that has any, averaged over cohorts."""
    rounds: dict[int, list[dict[str, float]]] = {}
    for event in events:
        found = event.get("distance") if event["event"] == "mixed" else None
        # What is not a number is null in a log.
        if found and all(found.get(side) is not None for side in SIDES):
            rounds.setdefault(event["round"], []).append({side: found[side] for side in SIDES})
    if not rounds:
        return None
    return {"first": mean_by_key(rounds[min(rounds)]), "last": mean_by_key(rounds[max(rounds)])}


def mean_error(events: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean of what the rounds say of their mixtures' errors."""
    told = [event.get("error") for event in events if event["event"] == "mixed"]
    found = [error["mean"] for error in told if error and error["mean"] is not None]
    return statistics.fmean(found) if found else None


def mean_by_key(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every key over the parts that have it."""
    values: dict[str, list[float]] = {}
    for part in parts:
        for key, value in part.items():
            values.setdefault(key, []).append(value)
    return {key: statistics.fmean(values[key]) for key in sorted(values)}
