"""Fingerprints as points in the plane, with ids that keep out of each other's way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from atlas.report.drawing import new_figure, quiet
from atlas.report.planned import MOST_LISTED, Planned, colour

Floats = NDArray[np.float64]

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
MOST_IDS = 30
RINGS = (5.0, 13.0, 23.0, 35.0, 49.0, 65.0)
"""Distances of an id from its point, in points of print, nearest first."""
TURNS = 16
FAR = 0.2
"""Overlap that outweighs one point of distance."""
FONT = 8


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
    _legend(figure, planned, marker)
    if len(points) <= MOST_IDS:
        place_ids(figure, axes, planned)
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


def _legend(figure: Figure, planned: Planned, marker: Mapping[str, str]) -> None:
    """Clusters by colour, then tasks by marker, beside the points and never over them."""
    rows: list[tuple[str, Line2D]] = []
    if planned.clusters is not None:
        names = planned.names()
        rows.append(("cluster", _key("", "none")))
        rows += [(names[c], _key("o", colour(c))) for c in list(names)[:MOST_LISTED]]
        if len(names) > MOST_LISTED:
            rows.append((f"{len(names) - MOST_LISTED} more", _key("", "none")))
    rows.append(("task", _key("", "none")))
    rows += [(task, _key(shape, "#475569")) for task, shape in marker.items()]
    words, keys = zip(*rows, strict=True)
    legend = figure.legend(
        keys, words, loc="outside right upper", frameon=False, fontsize=8.5, handletextpad=0.2
    )
    for text in legend.get_texts():
        if text.get_text() in ("cluster", "task"):
            text.set_fontweight("bold")


def _key(marker: str, fill: str) -> Line2D:
    return Line2D([], [], linestyle="none", marker=marker, color=fill, markersize=7)


def place_ids(figure: Figure, axes: Axes, planned: Planned) -> None:
    """Write each id at the freest place near its point, with a line where that is far."""
    figure.draw_without_rendering()  # the layout decides where points are in print
    scale = 72 / figure.dpi
    places = axes.transData.transform(planned.points) * scale
    frame = axes.get_window_extent().get_points().reshape(4) * scale
    taken = [_box(place, 8.0, 8.0) for place in places]
    for row, (place, name) in enumerate(zip(places, planned.clients, strict=True)):
        width, height = _text_size(axes, name)
        tries = [
            (ring, shift, [_box(place + shift, width + 3, height + 1), *_line(place, shift, ring)])
            for ring in RINGS
            for shift in _shifts(ring, width, height)
        ]
        inside = [one for one in tries if _within(one[2][0], frame)] or tries
        # A little overlap is better than an id far from its point.
        ring, shift, boxes = min(inside, key=lambda one: _overlap(one[2], taken) + FAR * one[0])
        taken += boxes
        _write_id(axes, planned, row, shift, far=ring > RINGS[0])


def _write_id(axes: Axes, planned: Planned, row: int, shift: Floats, *, far: bool) -> None:
    line = {"arrowstyle": "-", "linewidth": 0.6, "color": "#94a3b8", "shrinkA": 0, "shrinkB": 3}
    text = axes.annotate(
        planned.clients[row],
        tuple(planned.points[row]),
        tuple(shift),
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=FONT,
        color=colour(planned.labels[row]),
        arrowprops=line if far else None,
    )
    text.set_in_layout(False)


def _text_size(axes: Axes, name: str) -> tuple[float, float]:
    """Width and height of an id in points of print."""
    probe = axes.text(0, 0, name, fontsize=FONT)
    extent = probe.get_window_extent()
    probe.remove()
    return extent.width * 72 / axes.figure.dpi, extent.height * 72 / axes.figure.dpi


def _shifts(ring: float, width: float, height: float) -> list[Floats]:
    """From a point to the middle of an id that keeps `ring` away from it, right first."""
    reach = np.array([ring + width / 2, ring + height / 2])
    angles = [2 * math.pi * turn / TURNS for turn in range(TURNS)]
    return [reach * (math.cos(angle), math.sin(angle)) for angle in angles]


def _line(place: Floats, shift: Floats, ring: float) -> list[Floats]:
    """The line to an id as small boxes, so that ids keep off it; near ids have none."""
    steps = (0.3, 0.45, 0.6) if ring > RINGS[0] else ()
    return [_box(place + step * shift, 2.0, 2.0) for step in steps]


def _box(middle: Floats, width: float, height: float) -> Floats:
    half = np.array([width, height]) / 2
    return np.concatenate([middle - half, middle + half])


def _within(box: Floats, frame: Floats) -> bool:
    return bool((box[:2] >= frame[:2]).all() and (box[2:] <= frame[2:]).all())


def _overlap(boxes: Sequence[Floats], taken: Sequence[Floats]) -> float:
    """Area shared with what is there already."""
    new, old = np.array(boxes)[:, None], np.array(taken)[None]
    sides = np.minimum(new[..., 2:], old[..., 2:]) - np.maximum(new[..., :2], old[..., :2])
    return float(sides.clip(min=0).prod(-1).sum())
