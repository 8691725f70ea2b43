"""Pictures of a run, drawn from its folder alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from atlas.report.figures.drawing import DPI, Events, mean_scores, new_figure, quiet, score_axes
from atlas.report.figures.ranks import plot_ranks
from atlas.report.relations import plot_relations
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder
from atlas.runs.summary import read_summary

ALONE, FEDERATED, MAJORITY = "#9aa5b1", "#2563a8", "#c2410c"


def plot_run(folder: RunFolder) -> None:
    """Draw validation over rounds and every client's result into `plots/clients.png`.

    A run that planned who learns from whom gets the pictures of `plot_relations` as well, one that
    granted ranks under budgets those of `plot_ranks`.
    """
    summary, events = read_summary(folder.summary), read_events(folder.events)
    width = 5 + max(4.0, 0.7 * len(summary["score"]["clients"]))
    figure = new_figure(width, 4.2)
    curve, bars = figure.subplots(1, 2, width_ratios=[4, width - 5])
    draw_validation(curve, events)
    draw_clients(bars, summary)
    folder.plots.mkdir(exist_ok=True)
    figure.savefig(folder.plots / "clients.png", dpi=DPI)
    plot_relations(folder)
    plot_ranks(folder)


def draw_validation(axes: Axes, events: Events) -> None:
    """One line per task: the mean validation score of its clients, round by round."""
    # Plans hold tasks too, as a list.
    began = (e["tasks"] for e in events if e["event"] in ("started", "resumed"))
    tasks: dict[str, str] = next(began, {})
    lines = mean_scores(events, lambda client: tasks.get(client, client))
    for task, rounds in lines.items():
        axes.plot(list(rounds), list(rounds.values()), marker="o", markersize=3, label=task)
    score_axes(axes, "Clients of each task")
    if lines:
        axes.legend(frameon=False)


def draw_clients(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Bars per client: alone and federated, with the majority figure as a line."""
    clients = list(summary["score"]["clients"])
    alone = summary.get("alone", {}).get("clients", {})
    width = 0.38 if alone else 0.6
    shift = width / 2 if alone else 0.0
    places = range(len(clients))
    if alone:
        heights = [100 * alone[client] for client in clients]
        axes.bar([p - shift for p in places], heights, width, color=ALONE, label="alone")
    scores = [100 * summary["score"]["clients"][client] for client in clients]
    name = summary["strategy"]
    axes.bar([p + shift for p in places], scores, width, color=FEDERATED, label=name)
    for place, client in enumerate(clients):
        level = 100 * summary["majority"]["clients"][client]
        label = "majority" if place == 0 else "_nolegend_"
        axes.hlines(level, place - 0.45, place + 0.45, color=MAJORITY, linewidth=1.5, label=label)
    axes.set_xticks(list(places), clients, rotation=30, ha="right")
    axes.set(ylabel="test score, %", title=f"{name}, {summary['rounds']} rounds")
    axes.legend(frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.22))
    quiet(axes)
