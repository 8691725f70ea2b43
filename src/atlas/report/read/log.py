"""What a log tells whoever wants to show it: tolerant of torn and foreign lines, and says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

Events = Sequence[Mapping[str, Any]]
"""As `runs.events.read_events` gives them."""
Rounds = dict[str, dict[int, float]]
"""One number by name (a client, an arm, a module) and round or step."""


def events_of(events: Events, *names: str) -> Iterator[Mapping[str, Any]]:
    """Those of some names, in order."""
    return (event for event in events if event["event"] in names)


def read_tasks(events: Events) -> dict[str, str]:
    """Task of every client, as the log's first line has it; plans hold tasks too, as a list."""
    began = (event.get("tasks") or {} for event in events_of(events, "started", "resumed"))
    return {client: task or "unknown" for client, task in next(began, {}).items()}


def read_cohorts(events: Events) -> dict[str, Any]:
    """Clients and modules of every cohort; the last ones where a run began anew."""
    cohorts: dict[str, Any] = {}
    for event in events_of(events, "started", "resumed"):
        cohorts |= event.get("cohorts") or {}
    return cohorts


def by_client(events: Events, name: str, field: str) -> Rounds:
    """A number that an event tells of a client in every round."""
    found: Rounds = {}
    for event in events_of(events, name):
        value = event.get(field)
        if isinstance(value, int | float):
            found.setdefault(str(event["client"]), {})[int(event["round"])] = float(value)
    return found


def shrunk(events: Events, field: str) -> Rounds:
    """A number of the estimated step of every client by round; see the event `shrunk`."""
    found: Rounds = {}
    for event in events_of(events, "shrunk"):
        for client, told in event["clients"].items():
            if told is not None:
                found.setdefault(client, {})[int(event["round"])] = float(told[field])
    return found


Scored = Literal["members", "alone"]
"""Whose validation an event tells: clients', or that of their shadows, which train alone."""


def validated(
    events: Events, score: str, factor: float = 1.0, scored: Scored = "members"
) -> Rounds:
    """A validation score of every client by round; nothing alone where nobody trained so."""
    found: Rounds = {}
    for event in events_of(events, "validated"):
        for client, scores in (event.get(scored) or {}).items():
            value = scores.get(score)
            if value is not None:
                found.setdefault(client, {})[int(event["round"])] = factor * value
    return found


def grouped(lines: Rounds, group_of: Mapping[str, str]) -> dict[str, dict[int, list[float]]]:
    """Numbers by group and round, from numbers by client and round; both in order."""
    found: dict[str, dict[int, list[float]]] = {}
    for client, rounds in lines.items():
        for number, value in rounds.items():
            found.setdefault(group_of.get(client, "all"), {}).setdefault(number, []).append(value)
    return {group: dict(sorted(found[group].items())) for group in sorted(found)}


def gaps(numbers: Iterable[int]) -> list[int]:
    """Whole numbers from one up to the largest that are not there."""
    there = set(numbers)
    return [number for number in range(1, max(there, default=0)) if number not in there]
