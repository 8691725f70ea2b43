"""Fingerprints as points in the plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from atlas.report.figures.drawing import new_figure, quiet
from atlas.report.figures.points import place_names
from atlas.report.legends import cluster_rows, marker_rows, write_legend
from atlas.report.read.cohorts import Planned, colour

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
MOST_IDS = 30


def fingerprint_figure(planned: Planned) -> Figure:
    """Colour by cluster, marker by task, ids where they fit."""
    figure = new_figure(8.2, 5.6)
    axes = figure.subplots()
    points, tasks = planned.points, sorted(set(planned.tasks))
    marker = {task: MARKERS[i % len(MARKERS)] for i, task in enumerate(tasks)}
    size = 55 if len(points) <= MOST_IDS else 32
    for (x, y), task, label in zip(points, planned.tasks, planned.labels, strict=True):
        ink = colour(label)
        axes.scatter(x, y, size, ink, marker=marker[task], alpha=0.85, linewidths=0)
    axes.set(xlabel="first component", ylabel="second component")
    axes.set_title(scatter_title(planned.event), fontsize=10.5)
    # Distances are what counts here, so both axes have one scale.
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.18)
    quiet(axes)
    axes.grid(axis="x", alpha=0.25)
    clusters = {} if planned.clusters is None else planned.names()
    write_legend(figure, {"cluster": cluster_rows(clusters), "task": marker_rows(marker)})
    if len(points) <= MOST_IDS:
        inks = [colour(label) for label in planned.labels]
        place_names(figure, axes, points, planned.clients, inks)
    return figure


def scatter_title(event: Mapping[str, Any]) -> str:
    """What the fingerprints keep, and how far each part can be relied on."""
    lines = ["Fingerprints"]
    if event.get("explained") is not None:
        lines[0] += f", {100 * event['explained']:.0f} % of the variance kept"
    parts = [
        f"{name} {facts['reliability']:.2f}"
        for name, facts in (event.get("parts") or {}).items()
        if facts.get("reliability") is not None
    ]
    return "\n".join([*lines, "reliability: " + ", ".join(parts)] if parts else lines)
