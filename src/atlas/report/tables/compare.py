"""What a study looks like on a terminal: its arms, together and task by task."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from atlas.report.read.studies import (
    Row,
    columns_of,
    compares_mixtures,
    compares_relations,
    mean_distance,
    rows_by_arm,
)
from atlas.report.tables.runs import percent, task_text
from atlas.report.words.legends import compare_legend, memory_legend

EXACT = 1e-5
"""Mixtures whose relative error is no larger are exact but for rounding."""


def compare_table(result: Mapping[str, Any]) -> Group:
    """One line per arm, averaged over its seeds; below, the same arms task by task."""
    if result.get("kind") == "memory":
        return _memory_view(result)
    arms, tasks = _arms_table(result), _tasks_table(result)
    told = {str(column.header) for column in arms.columns if any(column.cells)}
    cells = [str(text) for column in tasks.columns for text in (column.header, *column.cells)]
    legend = (Text(line, style="dim") for line in compare_legend(told, cells))
    devices = _devices_table(result)
    return Group(arms, tasks, *([] if devices is None else [devices]), *legend)


def _names(row: Row) -> list[str]:
    """What sets an arm apart; a list in its name is no markup."""
    return [escape(str(value)) for value in columns_of(row).values()] or [row["arm"]]


def _arms_table(result: Mapping[str, Any]) -> Table:
    """All tasks together: the arms between the majority and the ceiling."""
    table = _open_table(result, result["study"])
    arms = rows_by_arm(result["rows"])
    gains = {arm: found["worst_gain"] for arm, found in result.get("clients", {}).items()}
    some_gain = any(gain is not None for gain in gains.values())
    relations = compares_relations(result["rows"])
    inexact = compares_mixtures(result["rows"]) and any(
        (row.get("error") or 0.0) > EXACT for row in result["rows"]
    )
    # Tests are of every arm against the first, in the order of the arms.
    lines = [
        _scores(rows)
        | (_gain(gains[arm]) if some_gain else {})
        | _costs(rows)
        | (_errors(rows) if inexact else {})
        | (_distances(rows) if relations else {})
        | _tests(test)
        for (arm, rows), test in zip(arms.items(), [{}, *result["tests"]], strict=True)
    ]
    for column in lines[0]:
        table.add_column(column, justify="right", no_wrap=True)
    blank = [""] * len(_names(result["rows"][0])[1:])
    table.add_row("majority", *blank, "", percent(result["majority"]))
    if result.get("alone"):
        empty = [""] * (len(lines[0]) - 2 - len(_tests({})))
        tests = _tests(result["alone"]).values()
        table.add_row("alone", *blank, "", percent(result["alone"]["mean"]), *empty, *tests)
    for rows, line in zip(arms.values(), lines, strict=True):
        table.add_row(*_names(rows[0]), *line.values())
    if result["ceiling"] is not None:
        table.add_row("ceiling", *blank, "", percent(result["ceiling"]))
    return table


def _memory_view(result: Mapping[str, Any]) -> Group:
    """Models of memory runs, one line each, averaged over seeds; a guess scores `chance`."""
    table = _open_table(result, f"{result['study']}: {', '.join(result['tasks'])}")
    arms = rows_by_arm(result["rows"])
    asked = any(row["retrieval"] is not None for row in result["rows"])
    lines = [
        _model_figures(rows, asked) | _tests(test)
        for rows, test in zip(arms.values(), [{}, *result["tests"]], strict=True)
    ]
    for column in lines[0]:
        table.add_column(column, justify="right", no_wrap=True)
    blank = [""] * len(_names(result["rows"][0])[1:])
    table.add_row("chance", *blank, "", percent(result["majority"]))
    for rows, line in zip(arms.values(), lines, strict=True):
        table.add_row(*_names(rows[0]), *line.values())
    told = {str(column.header) for column in table.columns if any(column.cells)}
    return Group(table, *(Text(line, style="dim") for line in memory_legend(told)))


def _model_figures(rows: Sequence[Row], asked: bool) -> dict[str, str]:
    """What a model got right over its seeds, and what it took; `asked`: retrieval is told too."""
    means = [row["mean"] for row in rows]
    own = {"own - emptied": _points(_mean(rows, "retrieval"))} if asked else {}
    share = _mean(rows, "share")
    return {
        "seeds": str(len(rows)),
        "accuracy": percent(statistics.fmean(means)),
        "spread": percent(statistics.pstdev(means)),
        "worst": percent(min(means)),
        "loss": _figure(_mean(rows, "loss")),
        "share": "" if share is None else f"{share:.2f}",
        **own,
        "seconds": f"{statistics.fmean(row['seconds'] for row in rows):.0f}",
    }


def _mean(rows: Sequence[Row], key: str) -> float | None:
    """Of the rows that tell it; a loss that is no number is told by none."""
    found = [row[key] for row in rows if row[key] is not None]
    return statistics.fmean(found) if found else None


def _points(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f}"


def _scores(rows: Sequence[Row]) -> dict[str, str]:
    means = [row["mean"] for row in rows]
    return {
        "seeds": str(len(rows)),
        "mean": percent(statistics.fmean(means)),
        "spread": percent(statistics.pstdev(means)),
        "worst": percent(min(row["worst"] for row in rows)),
    }


def _gain(gain: float | None) -> dict[str, str]:
    """What the client that gains least over training alone gains, in points."""
    # In two lines, to leave room for the names of arms.
    return {"worst\ngain": _points(gain)}


def _costs(rows: Sequence[Row]) -> dict[str, str]:
    traffic = statistics.fmean(row["bytes"]["up"] + row["bytes"]["down"] for row in rows)
    seconds = statistics.fmean(row["seconds"] for row in rows)
    return {"MB": f"{traffic / 1e6:.1f}", "seconds": f"{seconds:.0f}"}


def _errors(rows: Sequence[Row]) -> dict[str, str]:
    """How far mixtures were from the exact ones; none for an arm that mixes nothing."""
    found = [row["error"] for row in rows if row.get("error") is not None]
    return {"mix\nerror": _figure(statistics.fmean(found) if found else None)}


def _distances(rows: Sequence[Row]) -> dict[str, str]:
    """How far apart mixed clients of one cluster are, in the first and the last round."""
    first, last = mean_distance(rows, "first"), mean_distance(rows, "last")
    return {"distance": _figure(first), "last": _figure(last)}


def _tests(test: Mapping[str, float | None]) -> dict[str, str]:
    keys = {"p (t)": "t_test_p", "p (W)": "wilcoxon_p", "d": "cohens_d"}
    return {column: _figure(test.get(key)) for column, key in keys.items()}


def _tasks_table(result: Mapping[str, Any]) -> Table:
    """Each task in its own metric; one on which nothing beats the majority is marked."""
    tasks = result["tasks"]
    table = _open_table(result, "task by task")
    for task, found in tasks.items():
        name = task_text(task, found["metric"])
        table.add_column(f"{name}, at chance" if found["at_chance"] else name, justify="right")
    blank = [""] * len(_names(result["rows"][0])[1:])
    table.add_row("majority", *blank, *(percent(found["majority"]) for found in tasks.values()))
    if any(found.get("alone") is not None for found in tasks.values()):
        table.add_row("alone", *blank, *(_percent(found.get("alone")) for found in tasks.values()))
    for arm, rows in rows_by_arm(result["rows"]).items():
        table.add_row(*_names(rows[0]), *(_with_share(found, arm) for found in tasks.values()))
    if result["ceiling"] is not None:
        table.add_row("ceiling", *blank, *(_percent(found["ceiling"]) for found in tasks.values()))
    return table


def _devices_table(result: Mapping[str, Any]) -> Table | None:
    """Scores by clients' devices or largest ranks, averaged over seeds; None if all are alike."""
    found = [row["devices"] for row in result["rows"] if row.get("devices")]
    if not found:
        return None
    names = list(dict.fromkeys(name for devices in found for name in devices))
    table = _open_table(result, "device by device")
    for name in names:
        table.add_column(name, justify="right")
    for rows in rows_by_arm(result["rows"]).values():
        means = [[row["devices"][n] for row in rows if n in row.get("devices", {})] for n in names]
        cells = [percent(statistics.fmean(own)) if own else "" for own in means]
        table.add_row(*_names(rows[0]), *cells)
    return table


def _with_share(found: Mapping[str, Any], arm: str) -> str:
    """An arm's score on a task and, in brackets, its share of the way from alone to the ceiling."""
    share = (found.get("recovered") or {}).get(arm)
    error = (found.get("recovered_error") or {}).get(arm)
    text = _percent(found["arms"].get(arm))
    if share is None:
        return text
    spread = "" if error is None else f" ± {100 * error:.0f}"
    return f"{text} ({100 * share:.0f}{spread} %)"


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value)


def _open_table(result: Mapping[str, Any], title: str) -> Table:
    """A table that begins with what sets the arms apart."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    for key in columns_of(result["rows"][0]) or ["arm"]:
        # Names must stay readable, however many numbers stand beside them.
        table.add_column(key, min_width=8, overflow="fold")
    return table


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
