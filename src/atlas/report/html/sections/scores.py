"""What a federation came to: every client, and scores and losses over the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from atlas.report.html.charts import (
    MOST_LINES,
    MOST_ROWS,
    ROUND,
    SCORE,
    Section,
    Spec,
    band,
    dots,
    line,
    lines,
    percent,
    table,
    tagged,
    tile,
)
from atlas.report.read.log import Rounds, by_client, grouped, validated
from atlas.report.read.source import RunSource
from atlas.report.tables.runs import ranks_text, task_text

RESULTS = "Results"
ROUNDS = "Over the rounds"
EACH_ALONE = "each alone"
"""Thin lines that are there to be switched on: with all others they are too many to read."""
_DASHED = " Dashed is training alone, the same training without the others."


def clients_section(run: RunSource) -> Section | None:
    """Every client against training alone and the majority."""
    summary = run.summary
    if summary is None or not run.clients:
        return None
    scores = summary["score"]["clients"]
    alone = summary.get("alone", {}).get("clients", {})
    shown = [client for client in run.clients if client in scores][:MOST_ROWS]
    series: list[Spec] = []
    levels = {"majority": summary["majority"]["clients"]}
    if "chance" in summary:
        levels["chance"] = summary["chance"]["clients"]
    for name, values in levels.items():
        marks = [percent(values.get(client)) for client in shown]
        series.append({"name": name, "colour": "majority", "shape": "bar", "values": marks})
    if alone:
        marks = [percent(alone.get(client)) for client in shown]
        solo: Spec = {"name": "alone", "colour": "alone", "hollow": True, "values": marks}
        series.append(solo)
    series.append(
        {
            "name": summary["strategy"],
            "colour": "accent",
            "colours": [run.slot(client) for client in shown],
            "values": [percent(scores[client]) for client in shown],
        }
    )
    chart = dots(
        shown,
        series,
        {**SCORE, "label": "test score, % of the task's own metric"},
        link=["alone", summary["strategy"]],
        rowColours=[run.slot(client) for client in shown],
        borders=_borders([run.tasks.get(client, "") for client in shown]),
    )
    gains = "green: joining helped, red: it cost. " if alone else ""
    return Section(
        "clients",
        RESULTS,
        "Every client",
        "The test score of each client, beside what it reaches by training alone and by always "
        "giving the commonest answer.",
        f"Look for the line between alone and {summary['strategy']}: {gains}A client left of its "
        "majority mark has learned nothing."
        if alone
        else "A client left of its majority mark has learned nothing.",
        charts=[chart],
        tables=[_clients_table(run, summary, levels, alone)],
        note="" if len(shown) == len(scores) else f"The first {len(shown)} of {len(scores)}.",
    )


def _borders(groups: list[str]) -> list[int]:
    return [n for n in range(1, len(groups)) if groups[n] != groups[n - 1]]


def _clients_table(
    run: RunSource, summary: Mapping[str, Any], levels: dict[str, Any], alone: dict[str, float]
) -> Spec:
    scores, traffic = summary["score"]["clients"], summary["bytes"]["clients"]
    columns = {"client": "text", "task": "text", summary["strategy"]: "score"}
    columns |= {"alone": "score", "gain": "signed"} if alone else {}
    columns |= dict.fromkeys(levels, "score")
    columns |= {"test examples": "integer", "ranks": "text", "sent": "bytes", "received": "bytes"}
    rows = []
    for client in [c for c in run.clients if c in scores]:
        ranks, both = summary["ranks"].get(client), traffic.get(client, {})
        metric = summary["metrics"].get(client, "accuracy")
        score, own = percent(scores[client]), percent(alone.get(client))
        gain = None if own is None or score is None else score - own
        rows.append(
            [
                tagged(client, run.slot(client)),
                task_text(run.tasks.get(client, ""), metric),
                score,
                *([own, gain] if alone else []),
                *(percent(values.get(client)) for values in levels.values()),
                summary.get("test_examples", {}).get(client),
                ranks_text(ranks) if ranks else "",
                both.get("up"),
                both.get("down"),
            ]
        )
    return table(columns, rows, title="Client by client")


def scores_section(run: RunSource) -> Section | None:
    """Validation scores over rounds."""
    found = validated(run.events, "score", 100)
    if not found:
        return None
    axis = {**SCORE, "label": "validation score, %"}
    alone = validated(run.events, "score", 100, "alone")
    gap = " A dashed line above its full one: training alone is ahead." if alone else ""
    return Section(
        "scores",
        ROUNDS,
        "Scores over the rounds",
        "Validation scores after every round: the mean of each task's clients, all of them as a "
        f"band, and each client as a thin line.{_DASHED if alone else ''}",
        "Look for lines that still rise at the end (more rounds would help) and for bands that "
        f"widen (some clients are left behind).{gap}",
        charts=[lines(_by_task(run, found, alone), ROUND, axis, wide=True, hidden=[EACH_ALONE])],
    )


def losses_section(run: RunSource) -> Section | None:
    """Training and validation losses over rounds."""
    charts = []
    alone = validated(run.events, "loss", scored="alone")
    found: dict[str, tuple[Rounds, Rounds]] = {
        "training": (by_client(run.events, "fitted", "loss"), {}),
        "validation": (validated(run.events, "loss"), alone),
    }
    for name, (own, solo) in found.items():
        if own:
            axis = {"label": f"{name} loss", "span": 0.02}
            more = {"title": f"Loss in {name}", "hidden": [EACH_ALONE]}
            charts.append(lines(_by_task(run, own, solo), ROUND, axis, **more))
    if not charts:
        return None
    return Section(
        "losses",
        ROUNDS,
        "Losses over the rounds",
        "Training loss of every round and loss on validation data, by task: mean, range and each "
        f"client.{_DASHED if alone else ''}",
        "Look for training loss that falls while validation loss rises: that is learning by heart.",
        charts=charts,
    )


def task_bands(run: RunSource, found: Rounds) -> list[Spec]:
    """A line for each task: the mean of its clients, and their range."""
    return [
        band(rounds, task, run.slots.get(task, 0), shape=SHAPES[run.slots.get(task, 0) % 6])
        for task, rounds in grouped(found, run.tasks).items()
    ]


def _by_task(run: RunSource, found: Rounds, alone: Rounds) -> list[Spec]:
    """A line for each task and, thin, for each client; dashed what they reach alone."""
    series = task_bands(run, found)
    each = len(series) < len(found) <= MOST_LINES
    for spec in task_bands(run, alone):
        # A second band in the same colour could not be told from the first.
        own = {key: value for key, value in spec.items() if key not in ("low", "high")}
        own["name"] = f"{spec['name']}, alone"
        series.append({**own, "dash": True, "hollow": True, "group": "alone"})
    if each:
        series += _thin(run, found, "each client")
        series += _thin(run, alone, EACH_ALONE, dash=True)
    return series


def _thin(run: RunSource, found: Rounds, group: str, **more: object) -> list[Spec]:
    """A line for each client, which the legend switches together."""
    return [
        line(found[client], client, run.slot(client), faint=True, group=group, **more)
        for client in run.clients
        if client in found
    ]


SHAPES = ("circle", "square", "up", "diamond", "down", "plus")
"""Marks beside colours, so that lines are told apart without those."""


def headline(run: RunSource) -> tuple[str, list[Spec]]:
    """One sentence that anybody understands, and the figures that matter most."""
    summary = run.summary
    if summary is None:
        return _so_far(run)
    count = len(summary["score"]["clients"])
    score, gain = summary["score"], summary.get("gain")
    who = f"{count} clients" if count > 1 else "One client"
    told = f"{who} trained together for {summary['rounds']} rounds ({summary['strategy']})"
    if summary["strategy"] == "local":
        told = f"{who} trained, each alone, for {summary['rounds']} rounds"
    text = f"{told} and now score {100 * score['mean']:.1f} % on average"
    if gain is None:
        text += "."
    else:
        points = 100 * gain["mean"]
        verb = "more" if points >= 0 else "less"
        text += f", {abs(points):.1f} points {verb} than each would by training alone"
        helped = _helped(summary)
        text += f"; {helped} of {count} gained." if count > 1 else "."
    tiles: list[Spec] = [
        tile("mean score", 100 * score["mean"], "percent", "over all clients, on test data"),
        tile("worst client", 100 * score["worst"], "percent", _worst(summary)),
    ]
    if gain is not None:
        note = f"points over training alone; least {100 * gain['worst']:+.1f}"
        tone = "better" if gain["mean"] > 0.0005 else "worse" if gain["mean"] < -0.0005 else ""
        tiles.insert(1, tile("mean gain", 100 * gain["mean"], "signed", note, tone))
    if clusters := summary.get("clusters"):
        purity = clusters.get("purity")
        note = "" if purity is None else f"{100 * purity:.0f} % of clients beside their own task"
        tiles.append(tile("groups found", clusters["k"], "integer", note))
    traffic = summary["bytes"]["up"] + summary["bytes"]["down"]
    tiles.append(tile("traffic", traffic, "bytes", "sent and received by all clients"))
    tiles.append(tile("time", summary["seconds"], "seconds", "of computing"))
    return text, tiles


def _helped(summary: Mapping[str, Any]) -> int:
    alone = summary["alone"]["clients"]
    return sum(
        round(100 * (own - alone[c]), 1) > 0 for c, own in summary["score"]["clients"].items()
    )


def _worst(summary: Mapping[str, Any]) -> str:
    scores = summary["score"]["clients"]
    return str(min(scores, key=lambda client: (scores[client], client)))


def _so_far(run: RunSource) -> tuple[str, list[Spec]]:
    found = validated(run.events, "score", 100)
    tiles = [tile("rounds done", run.done, "integer", f"of {run.rounds or '?'}")]
    if not found:
        return "", tiles
    last = [rounds[max(rounds)] for rounds in found.values()]
    tiles.append(tile("validation", statistics.fmean(last), "percent", "mean over clients so far"))
    return "", tiles
