"""Numbers of a memory or grokking run over its steps, by arm and layer."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from atlas.report.read.log import Events, Rounds, events_of


def by_arm(events: Events, name: str, figure: str, factor: float = 1.0) -> Rounds:
    """A figure that an event tells by arm, {arm: value}, by arm and step."""
    found: Rounds = {}
    for event in events_of(events, name):
        told = event.get(figure)
        for arm, value in (told if isinstance(told, Mapping) else {}).items():
            if isinstance(value, int | float):
                found.setdefault(arm, {})[event["step"]] = factor * value
    return found


def trained(events: Events, figure: str, name: str = "trained") -> Rounds:
    """A figure of training steps by arm and step, where it is a number."""
    found: Rounds = {}
    for event in events_of(events, name):
        if isinstance(event.get(figure), int | float):
            found.setdefault(event["arm"], {})[event["step"]] = float(event[figure])
    return found


def steps_of(events: Events, arm: str) -> Iterator[Mapping[str, Any]]:
    """What was observed of an arm."""
    return (event for event in events_of(events, "trained") if event["arm"] == arm)


def by_layer(events: Events, arm: str, measure: str) -> Rounds:
    """One measure of an arm's memory by layer and step."""
    found: Rounds = {}
    for event in steps_of(events, arm):
        for name, value in (event["memory"] or {}).items():
            layer, _, what = name.partition("/")
            if what == measure and value is not None:
                found.setdefault(layer.replace("layers.", "layer "), {})[event["step"]] = value
    return found


def layer_means(events: Events, arm: str, ending: str) -> Rounds:
    """What the memory of an arm did by measure and step: means over its layers."""
    found: dict[str, dict[int, list[float]]] = {}
    for event in steps_of(events, arm):
        for name, value in (event["memory"] or {}).items():
            if name.endswith(ending) and value is not None:
                short = name.partition("/")[2].removesuffix(ending).removeprefix("gate.")
                found.setdefault(short, {}).setdefault(event["step"], []).append(value)
    return {
        name: {step: statistics.fmean(values) for step, values in points.items()}
        for name, points in found.items()
    }


def floors(events: Events, arm: str) -> dict[int, float]:
    """The least share that an arm's memory may have, by step."""
    return {e["step"]: e["gate_floor"] for e in steps_of(events, arm) if "gate_floor" in e}
