"""How a run is doing, in a few words beside its bar: scores so far, loss, clients, time left."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from atlas.report.words.english import counted
from atlas.report.words.spark import sparkline

RECENT = 3
"""Rounds by whose mean duration the time left is told."""
SPAN = 0.04
"""Share of right answers that the sparkline covers at least."""


class Pace:
    """Collects a run's events; `news` is what they come to."""

    def __init__(self) -> None:
        self.total = 0
        self.done = 0
        self.clients = 0
        self.means: list[float] = []
        self.seconds: list[float] = []
        self.loss: float | None = None
        self._scores: list[float] = []
        self._losses: list[float] = []

    def add(self, name: str, fields: Mapping[str, Any]) -> None:
        """One event of the run."""
        if name in ("started", "resumed"):
            self.total, self.done = fields["rounds"], fields.get("after", 0)
        elif name == "round_started":
            self.clients = len(fields["clients"])
        elif name in ("fitted", "trained", "measured"):
            if fields.get("loss") is not None:
                self._losses.append(fields["loss"])
        elif name == "validated":
            found = (fields["members"] or {}).values()
            self._scores += [own["score"] for own in found if own.get("score") is not None]
        elif name == "round_finished":
            self._finish(fields)

    def _finish(self, fields: Mapping[str, Any]) -> None:
        told = fields.get("accuracy") or fields.get("test_accuracy")
        if isinstance(told, Mapping) and told:
            self._scores = [next(iter(told.values()))]  # of the first arm
        if self._scores:
            self.means.append(statistics.fmean(self._scores))
        if self._losses:
            self.loss = statistics.fmean(self._losses)
        self.seconds.append(float(fields.get("seconds") or 0.0))
        self.done = fields["round"]
        self._scores, self._losses = [], []

    @property
    def left(self) -> float | None:
        """Seconds that the rounds to come may take; None before the first is done."""
        if not self.seconds:
            return None
        return statistics.fmean(self.seconds[-RECENT:]) * max(0, self.total - self.done)

    def news(self) -> str:
        """A few words."""
        parts = [counted(self.clients, "client")] if self.clients else []
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.means:
            parts.append(f"{sparkline(self.means, SPAN)} {100 * self.means[-1]:.1f} %")
        if self.left:
            parts.append(f"about {duration(self.left)} left")
        return "  ".join(parts)


def duration(seconds: float) -> str:
    """`8 s`, `2 min 5 s`, `3 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
