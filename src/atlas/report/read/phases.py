"""Phases of grokking as spans of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from atlas.memory.training.grokking.phase import find_phases

Points = Sequence[Mapping[str, Any]]
"""`measured` events of one arm."""


def phase_spans(points: Points) -> list[tuple[int, int, str]]:
    """From step, to step, phase: as the whole series has them."""
    steps = [point["step"] for point in points]
    measures = ("fourier_concentration", "test_accuracy")
    fourier, accuracy = ([_number(point[key]) for point in points] for key in measures)
    starts = find_phases(steps, fourier, accuracy)
    ends = [start.step for start in starts[1:]] + steps[-1:]
    return [(start.step, end, start.name) for start, end in zip(starts, ends, strict=True)]


def _number(value: float | None) -> float:
    """What was not finite meets no threshold."""
    return -math.inf if value is None else value
