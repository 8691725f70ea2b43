"""Who is close to whom and who learns from whom, as heatmaps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from atlas.report.figures.drawing import new_figure
from atlas.report.read.cohorts import PlannedCohort

Matrix = NDArray[np.float64]

MOST_TICKS = 30
MOST_NUMBERS = 12
"""Clients up to which cells hold their value."""
MOST_ROUNDS = 4
"""Rounds whose W stand side by side."""
LEAST_SPAN = 0.05
"""Of a colour scale, so that rounding does not look like structure."""
SWAMPED = 4.0
"""Times by which a diagonal may exceed all pairs and still share their scale."""
COLOURS = colormaps["viridis"].with_extremes(bad="#d4d8dd")


def affinity_figure(planned: PlannedCohort) -> Figure | None:
    """Raw affinity and the neighbours left of it; None where they were not logged."""
    affinity, neighbours = planned.matrix("affinity"), planned.matrix("neighbours")
    if affinity is None or neighbours is None:
        return None
    side = _side(planned)
    figure = new_figure(2 * side, 0.93 * side)
    left, right = figure.subplots(1, 2)
    others = _others(affinity)
    lowest = float(np.nanmin(others)) if np.isfinite(others).any() else 0.0
    draw_matrix(left, affinity, planned, "Raw affinity", lowest)
    left.set_xlabel("client")
    draw_matrix(right, neighbours, planned, "Neighbours, each row normalised")
    return figure


def mixing_figure(planned: PlannedCohort, mixed: Mapping[str, Any]) -> Figure:
    """The weights by which every client's adapter was made in one round."""
    weights = np.array(mixed["weights"], dtype=np.float64)
    title = f"Effective W of round {mixed['round']}"
    if weights.ndim == 3:
        weights, title = weights.mean(0), f"{title}, mean over modules"
    side = _side(planned)
    figure = new_figure(side + 0.4, side)
    draw_matrix(
        figure.subplots(), planned.arrange(weights.tolist(), mixed["clients"]), planned, title
    )
    return figure


def rounds_figure(planned: PlannedCohort, mixtures: Sequence[Mapping[str, Any]]) -> Figure:
    """W of a few rounds side by side, the first and the last among them.

    Args:
        planned: Whose clients, in which order.
        mixtures: The cohort's `mixed` events that hold W, in order.
    """
    count = min(MOST_ROUNDS, len(mixtures))
    shown = [mixtures[round(i * (len(mixtures) - 1) / max(1, count - 1))] for i in range(count)]
    side = _side(planned)
    figure = new_figure(count * side, side)
    for axes, mixed in zip(figure.subplots(1, count, squeeze=False)[0], shown, strict=True):
        weights = np.array(mixed["weights"], dtype=np.float64)
        weights = weights.mean(0) if weights.ndim == 3 else weights
        arranged = planned.arrange(weights.tolist(), mixed["clients"])
        draw_matrix(axes, arranged, planned, f"W of round {mixed['round']}")
    return figure


def draw_matrix(
    axes: Axes, values: Matrix, planned: PlannedCohort, title: str, lowest: float = 0.0
) -> None:
    """One heatmap: row k is what client k takes from each column.

    Pairs of clients set the colour scale where a large diagonal would leave them all alike; that
    the diagonal is beyond the scale shows as the arrow of the colour bar.
    """
    norm = _scale(values, lowest)
    image = axes.imshow(values, cmap=COLOURS, norm=norm, interpolation="nearest")
    beyond = bool(np.nanmax(values, initial=0.0) > (norm.vmax or 0.0) + 1e-9)
    bar = axes.figure.colorbar(
        image, ax=axes, shrink=0.8, pad=0.02, extend="max" if beyond else "neither"
    )
    bar.outline.set_visible(False)
    if len(values) <= MOST_NUMBERS:
        _write_numbers(axes, values, norm)
    for place in planned.borders():
        for line in (axes.axhline, axes.axvline):
            line(place - 0.5, color="white", linewidth=1.6)
    _name_ticks(axes, planned)
    axes.set(title=title, xlabel="learns from", ylabel="client")
    axes.spines[:].set_visible(False)


def _side(planned: PlannedCohort) -> float:
    """Inches of a heatmap with its ids and bar."""
    return min(8.0, max(5.0, 2.0 + 0.22 * len(planned.clients)))


def _others(values: Matrix) -> Matrix:
    others: Matrix = values[~np.eye(len(values), dtype=bool)]
    return others


def _scale(values: Matrix, lowest: float) -> Normalize:
    highest = float(np.nanmax(values, initial=0.0)) or 1.0
    pairs = float(np.nanmax(_others(values), initial=0.0))
    if 0.0 < pairs < highest / SWAMPED:
        highest = pairs
    return Normalize(min(lowest, max(0.0, highest - LEAST_SPAN)), highest)


def _write_numbers(axes: Axes, values: Matrix, norm: Normalize) -> None:
    """Values in their cells; none where nothing is taken."""
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value) and value != 0.0:
            ink = "white" if norm(value) < 0.6 else "black"
            text = f"{value:.2f}"
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7.5)


def _name_ticks(axes: Axes, planned: PlannedCohort) -> None:
    """Client ids in the colours of their clusters; every so many where there are too many."""
    step = math.ceil(len(planned.clients) / MOST_TICKS)
    places = range(0, len(planned.clients), step)
    names = [planned.clients[i] for i in places]
    axes.set_xticks(list(places), names, rotation=90, fontsize=8)
    axes.set_yticks(list(places), names, fontsize=8)
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        for place, label in zip(places, labels, strict=True):
            label.set_color(planned.colour(planned.labels[place]))
