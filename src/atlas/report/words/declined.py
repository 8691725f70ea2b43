"""Who took what was offered, read from a run's events.

A `delivered` event tells how much of a mixture a client took. Nothing may mean that it declined, or
that there was nothing to take: a client without neighbours, or whose neighbours were all absent, is
offered none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atlas.config.federation import FederationConfig

Events = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Answers:
    """What the clients of a run did with what they were offered.

    Attributes:
        declined: Clients that took nothing of any mixture.
        sometimes: Of clients that declined some, how many of how many.
        returned: Clients that took some, and ended with what they had learned alone.
        lonely: Clients that were never offered anything.
    """

    declined: list[str] = field(default_factory=list)
    sometimes: dict[str, tuple[int, int]] = field(default_factory=dict)
    returned: list[str] = field(default_factory=list)
    lonely: list[str] = field(default_factory=list)


def keeps_best(config: FederationConfig) -> bool:
    """Whether the clients of a run could decline."""
    if config.keep_best is not None:
        return config.keep_best
    # Late: strategies bring torch, which a list of runs does without.
    from atlas.federation.strategies import STRATEGIES

    return config.strategy in STRATEGIES and STRATEGIES[config.strategy].keep_best


@dataclass(frozen=True)
class _Offers:
    """Who could be offered a mixture, and when.

    Attributes:
        others: Of every client, those it learns from.
        planned: Clients whose neighbours were planned.
        present: Who was asked, by round.
        config: The run's settings.
    """

    others: Mapping[str, frozenset[str]]
    planned: frozenset[str]
    present: Mapping[int, frozenset[str]]
    config: FederationConfig

    def made(self, client: str, number: int) -> bool:
        """Whether there was anything in a client's row of W but itself."""
        if client in self.planned and number <= self.config.relation.warmup:
            return False
        others = self.others.get(client, frozenset())
        if self.config.absent == "restrict":
            others = others & self.present.get(number, frozenset())
        return bool(others - {client})


def _read_offers(events: Events, config: FederationConfig) -> _Offers:
    others: dict[str, frozenset[str]] = {}
    planned: set[str] = set()
    present = {}
    for event in events:
        if event["event"] in ("started", "resumed"):
            for cohort in event.get("cohorts", {}).values():
                others |= dict.fromkeys(cohort["clients"], frozenset(cohort["clients"]))
        elif event["event"] == "planned":
            planned |= set(event["clients"])
        elif event["event"] == "round_started":
            present[event["round"]] = frozenset(event["clients"])
    for event in events:
        if event["event"] == "planned":
            others |= _neighbours(event)
    return _Offers(others, frozenset(planned), present, config)


def _neighbours(plan: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """From whom each learns by the plan: neighbours or, where those are not told, its cluster."""
    clients, clusters = plan["clients"], plan.get("clusters")
    if plan.get("neighbours"):
        rows = zip(clients, plan["neighbours"], strict=True)
        return {c: frozenset(o for o, w in zip(clients, row, strict=True) if w) for c, row in rows}
    labels = clusters["labels"] if clusters else [0] * len(clients)
    groups: dict[int, set[str]] = {}
    for client, label in zip(clients, labels, strict=True):
        groups.setdefault(label, set()).add(client)
    return {c: frozenset(groups[label]) for c, label in zip(clients, labels, strict=True)}


def read_answers(events: Events, config: FederationConfig) -> Answers:
    """Sort the clients of a run by what they took."""
    offers = _read_offers(events, config)
    taken: dict[str, list[float]] = {}
    for event in events:
        if event["event"] == "delivered":
            shares = taken.setdefault(event["client"], [])
            if offers.made(event["client"], event["round"]):
                shares.append(float(event["accept"]))
    found = Answers(lonely=[client for client, shares in taken.items() if not shares])
    if not keeps_best(config):
        return found
    alone = _ended_alone(events)
    for client, shares in taken.items():
        none = sum(share == 0.0 for share in shares)
        if shares and none == len(shares):
            found.declined.append(client)
        elif none:
            found.sometimes[client] = (none, len(shares))
        if client in alone and any(shares):
            found.returned.append(client)
    return found


def _ended_alone(events: Events) -> set[str]:
    """Clients whose test is, to the last bit of its loss, the test of training alone."""
    tested = (event for event in events if event["event"] == "tested" and event.get("alone"))
    return {event["client"] for event in tested if event["scores"] == event["alone"]}
