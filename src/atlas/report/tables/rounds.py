"""The rounds of a run on a terminal: small tables with sparklines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from atlas.report.read.log import Events, Rounds, by_client, grouped, read_tasks, validated
from atlas.report.read.series import by_arm, trained
from atlas.report.words.plain_text import spelled
from atlas.report.words.spark import sparkline

SPAN = 4.0
"""Points that a sparkline of scores covers at least."""


def rounds_table(events: Events, kind: str) -> Table | None:
    """One line per task or model: how its scores and losses went; None before the first round."""
    rows = list(_federation(events) if kind == "federation" else _arms(events))
    if not rows:
        return None
    table = Table(title="over the rounds", title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    table.add_column("task" if kind == "federation" else "arm", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("", no_wrap=True)
    for column in ("first", "last", "best"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, what, points, higher in rows:
        values = [points[number] for number in sorted(points)]
        best = max(values) if higher else min(values)
        shown = ".1f" if higher else ".3f"
        line = sparkline(values, SPAN if higher else 0.0)
        figures = (format(value, shown) for value in (values[0], values[-1], best))
        table.add_row(Text(spelled(name)), what, line, *figures)
    return table


Line = tuple[str, str, Mapping[int, float], bool]
"""Whose, what, its values by round or step, and whether more is better."""


def _federation(events: Events) -> Iterator[Line]:
    tasks = read_tasks(events)
    found: dict[str, tuple[Rounds, bool]] = {
        "validation, %": (validated(events, "score", 100), True),
        "alone, %": (validated(events, "score", 100, "alone"), True),
        "training loss": (by_client(events, "fitted", "loss"), False),
    }
    for what, (lines, higher) in found.items():
        for task, rounds in grouped(lines, tasks).items():
            means = {number: statistics.fmean(values) for number, values in rounds.items()}
            yield task, what, means, higher


def _arms(events: Events) -> Iterator[Line]:
    right = by_arm(events, "round_finished", "accuracy", 100)
    right = right or by_arm(events, "round_finished", "test_accuracy", 100)
    loss = trained(events, "loss") or trained(events, "loss", "measured")
    for arm, points in right.items():
        yield arm, "right, %", points, True
    for arm, points in loss.items():
        yield arm, "training loss", points, False
