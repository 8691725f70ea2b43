"""Events of a round as named numbers, the same for every library that draws them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from atlas.report.read.rows import client_round_rows, round_rows

MOST_CLIENTS = 64
"""Beyond so many, clients have no curves of their own; events draw the same line."""
STEPS = ("trained", "measured")
"""Events of memory and grokking runs that count steps, not rounds."""
CLIENT_FIGURES = ("loss", "score", "alone", "accept")
"""What has a curve for each client."""
ADDRESS = ("event", "time", "round", "step", "arm")


class Scalar(NamedTuple):
    """One point of a curve."""

    name: str
    step: int
    value: float


def round_scalars(events: Sequence[Mapping[str, Any]]) -> list[Scalar]:
    """Points of all curves in the events of one round or several.

    A federation has a curve for each figure of its rounds and, by `figure/client`, for each client;
    a memory or grokking run by `figure/arm`, at the steps it tells.
    """
    stepped = [e for e in events if "step" in e]
    if stepped:
        return [scalar for event in stepped for scalar in _of_step(event)]
    found = [s for row in round_rows(events) for s in _numbers(row, row["round"])]
    clients = client_round_rows(events)
    if len({row["client"] for row in clients}) <= MOST_CLIENTS:
        for row in clients:
            own: dict[str, Any] = {k: row[k] for k in CLIENT_FIGURES if k in row}
            found += _numbers(own, row["round"], f"/{row['client']}")
    return found


def final_scalars(events: Sequence[Mapping[str, Any]], step: int) -> list[Scalar]:
    """What the test said: `test/figure/client` or `test/figure/arm`."""
    found = []
    for event in events:
        if event["event"] == "tested":
            whose = event.get("client") or event.get("arm")
            scores = event.get("scores") or {k: event[k] for k in event if k not in ADDRESS}
            found += [
                Scalar(f"test/{s.name}", s.step, s.value)
                for s in _numbers(scores, step, f"/{whose}")
            ]
    return found


def _of_step(event: Mapping[str, Any]) -> Iterator[Scalar]:
    """Figures of a step; those of a round's end are told by arm inside each figure."""
    arm = f"/{event['arm']}" if event["event"] in STEPS else ""
    before = "" if event["event"] in STEPS else "validation/"
    own = {key: value for key, value in event.items() if key not in ADDRESS}
    if event["event"] in (*STEPS, "round_finished"):
        for scalar in _numbers(own, int(event["step"]), arm):
            yield Scalar(before + scalar.name, scalar.step, scalar.value)


def _numbers(values: Mapping[str, Any], step: int, behind: str = "") -> Iterator[Scalar]:
    """Every finite number, nested ones by `figure/part`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers({f"{key}/{part}": v for part, v in value.items()}, step, behind)
        elif _is_number(value) and key != "round":
            yield Scalar(key + behind, step, float(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
