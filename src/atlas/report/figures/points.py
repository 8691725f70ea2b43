"""Clients as points in the plane: names that keep out of each other's way, legends beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from atlas.report.colours import colour
from atlas.report.figures.drawing import new_figure, quiet
from atlas.report.read.cohorts import MOST_LISTED, PlannedCohort

Floats = NDArray[np.float64]

RINGS = (5.0, 13.0, 23.0, 35.0, 49.0, 65.0)
"""Distances of a name from its point, in points of print, nearest first."""
TURNS = 16
FAR = 0.2
"""Overlap that outweighs one point of distance."""
FONT = 8


def place_names(
    figure: Figure,
    axes: Axes,
    points: Floats,
    names: Sequence[str],
    inks: Sequence[str],
    taken: Sequence[Floats] = (),
) -> None:
    """Write each name at the freest place near its point, with a line where that is far.

    Args:
        figure: Laid out already but for the names.
        axes: Where the points are.
        points: Their data coordinates [n, 2].
        names: One for each.
        inks: Colour of each name.
        taken: Boxes in points of print that names keep off, beside those of their own points.
    """
    places = print_places(figure, axes, points)
    frame = axes.get_window_extent().get_points().reshape(4) * 72 / figure.dpi
    full = [*(box(place, 8.0, 8.0) for place in places), *taken]
    for row, (place, name) in enumerate(zip(places, names, strict=True)):
        width, height = _text_size(axes, name)
        tries = [
            (ring, shift, [box(place + shift, width + 3, height + 1), *_line(place, shift, ring)])
            for ring in RINGS
            for shift in _shifts(ring, width, height)
        ]
        inside = [one for one in tries if _within(one[2][0], frame)] or tries
        # A little overlap is better than a name far from its point.
        ring, shift, boxes = min(inside, key=lambda one: _overlap(one[2], full) + FAR * one[0])
        full += boxes
        point = (float(points[row, 0]), float(points[row, 1]))
        _write_name(axes, name, point, shift, ink=inks[row], far=ring > RINGS[0])


def print_places(figure: Figure, axes: Axes, points: Floats) -> Floats:
    """Where data coordinates [n, 2] come to lie in the picture, in points of print."""
    figure.draw_without_rendering()  # the layout decides
    places: Floats = axes.transData.transform(points) * 72 / figure.dpi
    return places


def _write_name(
    axes: Axes, name: str, point: tuple[float, float], shift: Floats, *, ink: str, far: bool
) -> None:
    line = {"arrowstyle": "-", "linewidth": 0.6, "color": "#94a3b8", "shrinkA": 0, "shrinkB": 3}
    text = axes.annotate(
        name,
        point,
        tuple(shift),
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=FONT,
        color=ink,
        arrowprops=line if far else None,
    )
    text.set_in_layout(False)


def _text_size(axes: Axes, name: str) -> tuple[float, float]:
    """Width and height of a name in points of print."""
    probe = axes.text(0, 0, name, fontsize=FONT, transform=axes.transAxes)
    extent = probe.get_window_extent()
    probe.remove()
    return extent.width * 72 / axes.figure.dpi, extent.height * 72 / axes.figure.dpi


def _shifts(ring: float, width: float, height: float) -> list[Floats]:
    """From a point to the middle of a name that keeps `ring` away from it, right first."""
    reach = np.array([ring + width / 2, ring + height / 2])
    angles = [2 * math.pi * turn / TURNS for turn in range(TURNS)]
    return [reach * (math.cos(angle), math.sin(angle)) for angle in angles]


def _line(place: Floats, shift: Floats, ring: float) -> list[Floats]:
    """The line to a name as small boxes, so that others keep off it; near names have none."""
    steps = (0.3, 0.45, 0.6) if ring > RINGS[0] else ()
    return [box(place + step * shift, 2.0, 2.0) for step in steps]


def box(middle: Floats, width: float, height: float) -> Floats:
    """Left, bottom, right and top of a box around a place."""
    half = np.array([width, height]) / 2
    return np.concatenate([middle - half, middle + half])


def _within(box: Floats, frame: Floats) -> bool:
    return bool((box[:2] >= frame[:2]).all() and (box[2:] <= frame[2:]).all())


def _overlap(boxes: Sequence[Floats], taken: Sequence[Floats]) -> float:
    """Area shared with what is there already."""
    new, old = np.array(boxes)[:, None], np.array(taken)[None]
    sides = np.minimum(new[..., 2:], old[..., 2:]) - np.maximum(new[..., :2], old[..., :2])
    return float(sides.clip(min=0).prod(-1).sum())


GREY = "#475569"
Row = tuple[str, str, str]
"""Words, marker and its colour."""


def cluster_rows(names: Mapping[int, str], slots: Mapping[int, int]) -> list[Row]:
    """Clusters by colour; of many the first, and how many more there are."""
    rows = [(names[label], "o", colour(slots[label])) for label in list(names)[:MOST_LISTED]]
    more = len(names) - MOST_LISTED
    return [*rows, (f"{more} more", "", "none")] if more > 0 else rows


def marker_rows(markers: Mapping[str, str]) -> list[Row]:
    """What each marker stands for."""
    return [(name, shape, GREY) for name, shape in markers.items()]


def write_legend(figure: Figure, sections: Mapping[str, Sequence[Row]]) -> None:
    """Sections with rows, each under its name; nothing if there are none."""
    rows: list[Row] = []
    heads = []
    for head, own in sections.items():
        if own:
            heads.append(len(rows))
            rows += [(head, "", "none"), *own]
    if not rows:
        return
    keys = [
        Line2D([], [], linestyle="none", marker=marker, color=fill, markersize=7)
        for _, marker, fill in rows
    ]
    legend = figure.legend(
        keys,
        [words for words, _, _ in rows],
        loc="outside right upper",
        frameon=False,
        fontsize=8.5,
        handletextpad=0.2,
    )
    for place in heads:
        legend.get_texts()[place].set_fontweight("bold")


MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
MOST_IDS = 30


def fingerprint_figure(planned: PlannedCohort) -> Figure:
    """Colour by cluster, marker by task, ids where they fit."""
    figure = new_figure(8.2, 5.6)
    axes = figure.subplots()
    points, tasks = planned.points, sorted(set(planned.tasks))
    marker = {task: MARKERS[i % len(MARKERS)] for i, task in enumerate(tasks)}
    size = 55 if len(points) <= MOST_IDS else 32
    for (x, y), task, label in zip(points, planned.tasks, planned.labels, strict=True):
        ink = planned.colour(label)
        axes.scatter(x, y, size, ink, marker=marker[task], alpha=0.85, linewidths=0)
    axes.set(xlabel="first component", ylabel="second component")
    axes.set_title(scatter_title(planned.event), fontsize=10.5)
    # Distances are what counts here, so both axes have one scale.
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.18)
    quiet(axes)
    axes.grid(axis="x", alpha=0.25)
    clusters = {} if planned.clusters is None else planned.names()
    write_legend(
        figure, {"cluster": cluster_rows(clusters, planned.slots), "task": marker_rows(marker)}
    )
    if len(points) <= MOST_IDS:
        inks = [planned.colour(label) for label in planned.labels]
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
