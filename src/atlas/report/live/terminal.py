"""What is shown while a run is under way: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from atlas.report.live.pace import Pace
from atlas.report.tables.data import data_lines
from atlas.report.tables.grokking import GrokkingLine
from atlas.report.tables.runs import MemoryLine
from atlas.report.words.budgets import granted_line
from atlas.report.words.english import counted
from atlas.report.words.plain_text import spelled

STOPPING = "stopping once this round is saved; Ctrl-C again stops at once"


class Display(Protocol):
    """Receives events and step counts."""

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """One event of the run."""
        ...

    def step(self, what: str, done: int, total: int) -> None:
        """Progress inside a round."""
        ...


class RoundLine:
    """Collects one round's events into a line of text."""

    def __init__(self) -> None:
        self.rounds = 0
        self.losses: list[float] = []
        self.scores: list[float] = []
        self.trouble: list[str] = []
        self.grants: list[Mapping[str, Any]] = []

    def add(self, name: str, fields: Mapping[str, Any]) -> str | None:
        """The finished line, once the round is over."""
        if name in ("started", "resumed"):
            self.rounds = fields["rounds"]
        elif name == "data":
            return "\n".join(data_lines(fields["clients"]))
        elif name == "planned":
            return planned_line(fields)
        elif name == "granted":
            self.grants.append(fields)
        elif name == "round_started":
            grants, self.grants = self.grants, []
            return granted_line(grants) if grants else None
        elif name == "fitted":
            self.losses += [] if fields["loss"] is None else [fields["loss"]]
        elif name == "validated":
            self.scores += [s["score"] for s in fields["members"].values() if "score" in s]
        elif name in ("refused", "failure"):
            self.trouble.append(f"{fields['client']}: {fields['reason']}")
        elif name == "round_finished":
            return self._finish(fields)
        return None

    def _finish(self, fields: Mapping[str, Any]) -> str:
        parts = [f"round {fields['round']}/{self.rounds}"]
        if self.losses:
            parts.append(f"loss {statistics.fmean(self.losses):.3f}")
        if self.scores:
            parts.append(f"validation {100 * statistics.fmean(self.scores):.1f}")
        parts.append(f"{(fields['up'] + fields['down']) / 1e6:.2f} MB")
        parts.append(f"{fields['seconds']:.1f} s")
        line = "  ".join(parts)
        for trouble in self.trouble:
            line += f"\n  not used: {trouble}"
        self.losses, self.scores, self.trouble = [], [], []
        return line


class PlanLine:
    """What a plan alone says on the way: its warnings stand under the tables that follow."""

    def add(self, name: str, fields: Mapping[str, Any]) -> str | None:
        """The line of a cohort's fingerprints."""
        return planned_line({**fields, "warnings": []}) if name == "planned" else None


def planned_line(fields: Mapping[str, Any]) -> str:
    """What was found out before the first round, and what there is to beware of."""
    line = f"plan  {counted(len(fields['clients']), 'fingerprint')}"
    clusters = fields.get("clusters")
    if clusters:
        line += f"  k = {clusters['k']} by {clusters['method']}"
        apart = clusters["silhouette"]
        line += "" if apart is None else f"  silhouette {apart:.2f}"
    return "\n  ".join([line, *fields["warnings"]])


class LineMaker(Protocol):
    """Makes lines of text from events."""

    def add(self, name: str, fields: Mapping[str, Any]) -> str | None:
        """A line, once it is complete."""
        ...


LINES: dict[str, Callable[[], LineMaker]] = {
    "federation": RoundLine,
    "memory": MemoryLine,
    "grokking": GrokkingLine,
}
"""By kind of run."""


class PlainDisplay:
    """One line a round, for logs and pipes."""

    def __init__(self, console: Console, line: LineMaker | None = None) -> None:
        self.console = console
        self.line = line or RoundLine()
        self.last = 0

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Print the round's line once it is complete."""
        if name in ("started", "resumed"):
            self.line = LINES[fields.get("kind", "federation")]()
            self.last = fields["rounds"]
        text = STOPPING if name == "stopping" else self.line.add(name, fields)
        if text:
            self.console.print(spelled(text), markup=False, highlight=False, soft_wrap=True)

    def step(self, what: str, done: int, total: int) -> None:
        """Steps are too fine for a log."""


class BarDisplay(PlainDisplay):
    """Lines for finished rounds above two bars: rounds, and steps of the current one."""

    def __init__(self, console: Console, bars: Progress, line: LineMaker | None = None) -> None:
        super().__init__(console, line)
        self.bars = bars
        self.pace = Pace()
        self.rounds = bars.add_task("rounds", total=None, news="")
        self.steps = bars.add_task("loading", total=None, news="")

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Move the bars, and print finished rounds above them."""
        super().event(name, fields)
        self.pace.add(name, fields)
        if name in ("started", "resumed", "round_started", "round_finished"):
            self.bars.update(self.rounds, news=self.pace.news())
        if name in ("started", "resumed"):
            self.bars.update(self.rounds, total=fields["rounds"], completed=fields["after"])
        elif name == "round_finished":
            self.bars.update(self.rounds, completed=fields["round"])
            if fields["round"] == self.last:
                self.bars.update(self.steps, description="testing", total=None)
        elif name == "finished":
            self.bars.update(self.steps, visible=False)

    def step(self, what: str, done: int, total: int) -> None:
        """Move the lower bar."""
        self.bars.update(self.steps, description=what, completed=done, total=total)


@contextmanager
def live_display(console: Console, line: LineMaker | None = None) -> Iterator[Display]:
    """Bars on a terminal, plain lines elsewhere; `line` makes them until a run says its kind."""
    if not console.is_terminal:
        yield PlainDisplay(console, line)
        return
    columns = (TextColumn("{task.description:>9}"), BarColumn(24), MofNCompleteColumn())
    news = TextColumn("{task.fields[news]}", markup=False)
    with Progress(*columns, TimeElapsedColumn(), news, console=console, transient=True) as bars:
        yield BarDisplay(console, bars, line)
