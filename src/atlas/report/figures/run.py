"""Pictures of a federation: its scores, and who learned from whom; drawn from its folder alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from atlas.report.colours import ALONE, MAJORITY, colour, task_slots
from atlas.report.figures.drawing import (
    ALONE_LINE,
    DPI,
    GREY,
    PALETTE,
    Events,
    least_span,
    mean_scores,
    new_figure,
    quiet,
    save_figures,
    score_axes,
)
from atlas.report.figures.energy import plot_energy
from atlas.report.figures.heatmaps import affinity_figure, mixing_figure, rounds_figure
from atlas.report.figures.points import fingerprint_figure
from atlas.report.figures.ranks import plot_ranks
from atlas.report.figures.rounds import plot_rounds
from atlas.report.read.clusters import origin_of
from atlas.report.read.cohorts import (
    MOST_LISTED,
    PlannedCohort,
    read_planned,
    read_signed,
)
from atlas.report.read.log import read_tasks
from atlas.report.words.english import counted
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder, read_summary

TRIED, CHOSEN, NEEDED = PALETTE[0], PALETTE[1], PALETTE[7]

PANELS = {
    "silhouette": "Silhouette, higher is better",
    "davies_bouldin": "Davies-Bouldin, lower is better",
    "calinski_harabasz": "Calinski-Harabasz, higher is better",
    "score": "Weighted score, higher is better",
    "stability": "Stability, higher is better",
    "share": "Reproduced share, to be above needed",
}


def plot_relations(folder: RunFolder) -> list[Path]:
    """Draw what each cohort planned and how it mixed; nothing for a run without a plan.

    Args:
        folder: The run.

    Returns:
        The pictures written, named after their cohort where there are several.
    """
    events = read_events(folder.events)
    plans = read_planned(events)
    figures = {planned.cohort: relation_figures(planned, events) for planned in plans}
    return save_figures(folder, figures)


def plot_relevance(folder: RunFolder) -> list[Path]:
    """Draw W over rounds where clients sign in every round; nothing for other runs.

    Returns:
        The pictures written, named after their cohort where there are several.
    """
    events = read_events(folder.events)
    figures = {
        planned.cohort: [("relevance", rounds_figure(planned, mixtures(planned.cohort, events)))]
        for planned in read_signed(events)
    }
    return save_figures(folder, figures)


def mixtures(cohort: str, events: Events) -> list[Mapping[str, Any]]:
    """The `mixed` events of a cohort that hold W, one for each round."""
    kept = {
        event["round"]: event
        for event in events
        if event["event"] == "mixed" and event["cohort"] == cohort and "weights" in event
    }
    return [kept[number] for number in sorted(kept)]


def relation_figures(planned: PlannedCohort, events: Events) -> Iterator[tuple[str, Figure]]:
    """Names and figures of one cohort, one at a time; those without data are left out."""
    affinity = affinity_figure(planned)
    if affinity is not None:
        yield "affinity", affinity
    yield "fingerprints", fingerprint_figure(planned)
    if planned.clusters is not None:
        if planned.clusters.get("tried"):
            yield "clusters", tried_figure(planned.clusters)
        accuracy = accuracy_figure(planned, events)
        if accuracy is not None:
            yield "cluster-accuracy", accuracy
    mixed = last_mixture(planned.cohort, events)
    if mixed is not None:
        yield "mixing", mixing_figure(planned, mixed)


def last_mixture(cohort: str, events: Events) -> Mapping[str, Any] | None:
    """The last `mixed` event of a cohort that holds its W."""
    found = mixtures(cohort, events)
    return found[-1] if found else None


def tried_figure(clusters: Mapping[str, Any]) -> Figure:
    """Every measure of every k that was tried, with the chosen k marked."""
    figure = new_figure(10, 5.6)
    panels = figure.subplots(2, 3, sharex=True)
    for axes, (key, title) in zip(panels.flat, PANELS.items(), strict=True):
        draw_tried(axes, clusters, key)
        axes.set_title(title, fontsize=10)
    for axes in panels[1]:
        axes.set_xlabel("k")
    keys = [
        _dot("a split that is kept", TRIED),
        _dot("not a split that is kept", "white"),
        Line2D([], [], label="share needed", color=NEEDED, linestyle=":"),
        Line2D([], [], label=_chosen_words(clusters), color=CHOSEN, linestyle="--"),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False)
    return figure


def _chosen_words(clusters: Mapping[str, Any]) -> str:
    origin = origin_of(clusters)
    chosen = f"chosen, k = {origin.k}"
    return f"{chosen}, then split into {clusters['k']}" if origin.parted else chosen


def _dot(label: str, fill: str) -> Line2D:
    return Line2D(
        [], [], label=label, linestyle="none", marker="o", color=TRIED, markerfacecolor=fill
    )


def draw_tried(axes: Axes, clusters: Mapping[str, Any], key: str) -> None:
    """One measure over k; splits that may not be used are hollow."""
    tried = sorted(clusters["tried"], key=lambda row: int(row["k"]))
    ks = [row["k"] for row in tried]
    axes.axvline(origin_of(clusters).k, color=CHOSEN, linestyle="--", linewidth=1.3)
    axes.plot(ks, _column(tried, key), color=TRIED, linewidth=1.2)
    if key == "share":
        axes.plot(ks, _column(tried, "needed"), color=NEEDED, linestyle=":", linewidth=1.5)
    fills = ["white" if not may_be_used(row) else TRIED for row in tried]
    axes.scatter(ks, _column(tried, key), c=fills, edgecolors=TRIED, s=38, zorder=3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelbottom=True)
    quiet(axes)


def may_be_used(row: Mapping[str, Any]) -> bool:
    """Whether clients may be split so; plans did not always tell."""
    return bool(row.get("kept", False not in (row.get("real"), row.get("useful"))))


def _column(tried: list[Mapping[str, Any]], key: str) -> list[float]:
    """One number per k, NaN where it is undefined."""
    return [np.nan if row.get(key) is None else float(row[key]) for row in tried]


def accuracy_figure(planned: PlannedCohort, events: Events) -> Figure | None:
    """Validation over rounds, one line per cluster; None for a run that did not validate."""
    label_of = dict(zip(planned.clients, planned.labels, strict=True))
    lines = mean_scores(events, label_of.get)
    if not lines:
        return None
    figure = new_figure(7.4, 4.2)
    axes, names = figure.subplots(), planned.names()
    listed = list(lines)[:MOST_LISTED]
    for label, rounds in lines.items():
        (line,) = axes.plot(list(rounds), list(rounds.values()), color=planned.colour(label))
        line.set(marker="o", markersize=3, label=names[label] if label in listed else None)
    score_axes(axes, "Validation by cluster: mean of its clients")
    figure.legend(loc="outside right upper", frameon=False, title="cluster", fontsize=8.5)
    return figure


MOST_NAMED = 60
"""Clients that have room for a name under their marks; of more, the picture grows no further."""


def plot_run(folder: RunFolder) -> None:
    """Draw validation over rounds and every client's result into `plots/clients.png`.

    A run that planned who learns from whom gets the pictures of `plot_relations` as well, one that
    granted ranks under budgets those of `plot_ranks`, one of unequal ranks that of `plot_energy`,
    one whose clients sign that of `plot_relevance`, and all of them those of `plot_rounds`.
    """
    summary, events = read_summary(folder.summary), read_events(folder.events)
    width = 5.6 + max(4.0, 0.7 * min(MOST_NAMED, len(summary["score"]["clients"])))
    figure = new_figure(width, 4.4)
    curve, marks = figure.subplots(1, 2, width_ratios=[4.6, width - 5.6])
    tasks = read_tasks(events)
    draw_validation(curve, events, summary, tasks)
    draw_clients(marks, summary, tasks)
    folder.plots.mkdir(exist_ok=True)
    figure.savefig(folder.plots / "clients.png", dpi=DPI)
    plot_relations(folder)
    plot_ranks(folder)
    plot_energy(folder)
    plot_relevance(folder)
    plot_rounds(folder)


def draw_validation(
    axes: Axes, events: Events, summary: Mapping[str, Any], tasks: Mapping[str, str]
) -> None:
    """One line per task over rounds and, right of it, what its clients reach on test data.

    Training alone is dashed in the colour of its task, with a hollow mark for its test score.
    """
    slots = task_slots(tasks.values())
    lines = mean_scores(events, lambda client: tasks.get(client, client))
    solo = mean_scores(events, lambda client: tasks.get(client, client), "alone")
    last = max((number for rounds in lines.values() for number in rounds), default=0)
    for task, rounds in lines.items():
        ink = colour(slots.get(task, 0))
        axes.plot(list(rounds), list(rounds.values()), "o-", color=ink, markersize=3, label=task)
    for task, rounds in solo.items():
        ink = colour(slots.get(task, 0))
        axes.plot(list(rounds), list(rounds.values()), **ALONE_LINE, color=ink)
    ends = {"federated": summary["score"]["clients"]}
    ends |= {"alone": summary["alone"]["clients"]} if "alone" in summary else {}
    for task, slot in slots.items():
        own = [client for client, other in tasks.items() if other == task]
        for name, scores in ends.items():
            values = [scores[client] for client in own if client in scores]
            if values:
                fill = colour(slot) if name == "federated" else "white"
                axes.plot(last + 1, 100 * statistics.fmean(values), "D", color=colour(slot),
                          markerfacecolor=fill, markersize=6)  # fmt: skip
    score_axes(axes, "Validation by task, and the test at the end")
    axes.axvline(last + 0.5, color="#cbd5e1", linewidth=1)
    axes.set_xticks([t for t in axes.get_xticks() if 1 <= t <= last] + [last + 1])
    axes.set_xticklabels([*(f"{t:g}" for t in axes.get_xticks()[:-1]), "test"])
    if lines:
        if solo:
            axes.plot([], [], **ALONE_LINE, color=GREY, label="alone")
        axes.plot([], [], "D", color=GREY, markerfacecolor="white", label="alone, test")
        axes.legend(frameon=False, fontsize=8.5)


def draw_clients(axes: Axes, summary: Mapping[str, Any], tasks: Mapping[str, str]) -> None:
    """Marks per client: federated in its task's colour, alone, and the majority as a line.

    The axis does not start at zero: what is to be seen is the distance between the marks.
    """
    clients = list(summary["score"]["clients"])
    alone = summary.get("alone", {}).get("clients", {})
    slots = task_slots(tasks.values())
    inks = [colour(slots.get(tasks.get(client, ""), 0)) for client in clients]
    places = range(len(clients))
    scores = [100 * summary["score"]["clients"][client] for client in clients]
    if alone:
        solo = [100 * alone[client] for client in clients]
        axes.vlines(places, solo, scores, colors=inks, linewidth=3, alpha=0.35)
        axes.scatter(places, solo, 36, "white", edgecolors=ALONE, linewidths=1.6, label="alone")
    name = summary["strategy"]
    axes.scatter(places, scores, 40, inks, zorder=3, label=name)
    levels = [100 * summary["majority"]["clients"][client] for client in clients]
    left, right = ([place + side for place in places] for side in (-0.4, 0.4))
    axes.hlines(levels, left, right, color=MAJORITY, linewidth=1.5, label="majority")
    if len(clients) <= MOST_NAMED:
        axes.set_xticks(list(places), clients, rotation=30, ha="right")
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(clients):,} clients, by name")
    axes.set(ylabel="test score, %", title=clients_title(summary))
    least_span(axes)
    axes.legend(frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.22))
    quiet(axes)


def clients_title(summary: Mapping[str, Any]) -> str:
    """What the clients came to, in one line."""
    after = f"{summary['strategy']} after {counted(summary['rounds'], 'round')}"
    if "gain" not in summary:
        return f"{after}: test scores"
    gain = f"{100 * summary['gain']['mean']:+.1f} points over alone"
    return f"{after}: {gain} on average, least {100 * summary['gain']['worst']:+.1f}"
