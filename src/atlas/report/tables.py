"""What a finished run looks like on a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from atlas.report.studies import Row, columns_of, compares_relations, mean_distance, rows_by_arm

SHORT = {
    "balanced_accuracy": "balanced",
    "matthews": "Matthews",
    "f1": "F1",
    "token_f1": "word F1",
    "exact_match": "exact",
}


def percent(value: float) -> str:
    """A score in percent with one decimal."""
    return f"{100 * value:.1f}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks of one client: one number where all layers are alike."""
    return str(ranks[0]) if len(set(ranks)) == 1 else f"{min(ranks)}-{max(ranks)}"


def task_text(task: str, metric: str) -> str:
    """A task, with its metric where that is not accuracy."""
    return f"{task} ({SHORT[metric]})" if metric in SHORT else task


def client_table(summary: Mapping[str, Any], tasks: Mapping[str, str]) -> Table:
    """One row per client: alone, federated, gain, traffic, and the majority figure beside.

    Scores are in percent of each task's own metric, named where it is not accuracy.
    """
    title = f"{summary['strategy']}, {summary['rounds']} rounds, {summary['seconds']:.0f} s"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    for column in ("client", "task"):
        table.add_column(column, no_wrap=True)
    for column in ("ranks", "majority", "alone", "federated", "gain", "up", "down"):
        table.add_column(column, justify="right", no_wrap=True)
    alone = summary.get("alone", {}).get("clients", {})
    for client, score in summary["score"]["clients"].items():
        both = summary["bytes"]["clients"].get(client)
        ranks, metric = summary["ranks"].get(client), summary["metrics"][client]
        table.add_row(
            client,
            task_text(tasks.get(client, ""), metric),
            ranks_text(ranks) if ranks else "",
            percent(summary["majority"]["clients"][client]),
            percent(alone[client]) if client in alone else "",
            percent(score),
            f"{100 * (score - alone[client]):+.1f}" if client in alone else "",
            size(both["up"]) if both else "",
            size(both["down"]) if both else "",
        )
    table.add_section()
    gain, traffic = summary.get("gain"), summary["bytes"]
    table.add_row(
        "mean",
        "",
        "",
        percent(statistics.fmean(summary["majority"]["clients"].values())),
        percent(summary["alone"]["mean"]) if alone else "",
        percent(summary["score"]["mean"]),
        f"{100 * gain['mean']:+.1f}" if gain else "",
        size(traffic["up"] / len(traffic["clients"])),
        size(traffic["down"] / len(traffic["clients"])),
    )
    worst = min(alone.values()) if alone else None
    table.add_row(
        "worst",
        "",
        "",
        "",
        percent(worst) if worst is not None else "",
        percent(summary["score"]["worst"]),
        f"{100 * gain['worst']:+.1f}" if gain else "",
    )
    return table


def runs_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """All runs of a folder, one line each."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0))
    for column in ("run", "state", "strategy"):
        table.add_column(column)
    for column in ("rounds", "seed", "score", "gain", "seconds"):
        table.add_column(column, justify="right")
    for row in rows:
        summary = row.get("summary") or {}
        score, gain = summary.get("score"), summary.get("gain")
        table.add_row(
            row["run"],
            row["state"],
            row["strategy"],
            f"{row['done']}/{row['rounds']}",
            str(row["seed"]),
            percent(score["mean"]) if score else "",
            f"{100 * gain['mean']:+.1f}" if gain else "",
            f"{summary['seconds']:.1f}" if summary else "",
        )
    return table


def compare_table(result: Mapping[str, Any]) -> Group:
    """One line per arm, averaged over its seeds; below, the same arms task by task."""
    return Group(_arms_table(result), _tasks_table(result))


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
    # Tests are of every arm against the first, in the order of the arms.
    lines = [
        _scores(rows)
        | (_gain(gains[arm]) if some_gain else {})
        | _costs(rows)
        | (_distances(rows) if relations else {})
        | _tests(test)
        for (arm, rows), test in zip(arms.items(), [{}, *result["tests"]], strict=True)
    ]
    for column in lines[0]:
        table.add_column(column, justify="right", no_wrap=True)
    blank = [""] * len(_names(result["rows"][0])[1:])
    table.add_row("majority", *blank, "", percent(result["majority"]))
    for rows, line in zip(arms.values(), lines, strict=True):
        table.add_row(*_names(rows[0]), *line.values())
    if result["ceiling"] is not None:
        table.add_row("ceiling", *blank, "", percent(result["ceiling"]))
    return table


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
    return {"worst\ngain": "" if gain is None else f"{100 * gain:+.1f}"}


def _costs(rows: Sequence[Row]) -> dict[str, str]:
    traffic = statistics.fmean(row["bytes"]["up"] + row["bytes"]["down"] for row in rows)
    seconds = statistics.fmean(row["seconds"] for row in rows)
    return {"MB": f"{traffic / 1e6:.1f}", "seconds": f"{seconds:.0f}"}


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
    for arm, rows in rows_by_arm(result["rows"]).items():
        scores = [found["arms"].get(arm) for found in tasks.values()]
        table.add_row(*_names(rows[0]), *("" if s is None else percent(s) for s in scores))
    if result["ceiling"] is not None:
        best = [found["ceiling"] for found in tasks.values()]
        table.add_row("ceiling", *blank, *("" if s is None else percent(s) for s in best))
    return table


def _open_table(result: Mapping[str, Any], title: str) -> Table:
    """A table that begins with what sets the arms apart."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    for key in columns_of(result["rows"][0]) or ["arm"]:
        # Names must stay readable, however many numbers stand beside them.
        table.add_column(key, min_width=8, overflow="fold")
    return table


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
