"""What a larger budget buys: mean rank against memory, as points."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from atlas.report.figures.drawing import new_figure, quiet
from atlas.report.figures.points import Floats, box, place_names, print_places
from atlas.report.granted import OUTSIDE, Granted
from atlas.report.legends import GREY, cluster_rows, marker_rows, write_legend
from atlas.report.scatter import MARKERS

BESIDE = 8.0
"""Points of print that a marker takes."""
MOST_BESIDE = 9
"""Markers side by side; more would be read as other budgets."""
WIDE = 6.0
"""Times by which budgets must differ for equal steps to be equal factors."""
APART = 1.3
"""Factor between budgets that are both named."""
EDGE = 1.35
"""Factor by which the axis of ranks goes beyond them."""


def memory_figure(granted: Granted) -> Figure:
    """Mean rank against budget: colour by cluster, marker by device, which is named once.

    Clients of one budget whose ranks are too close to be told apart stand side by side.
    """
    figure = new_figure(8.2, 4.8)
    axes = figure.subplots()
    points, marker = granted.points, device_markers(granted)
    dots = [
        axes.scatter(x, y, 46, ink, marker=marker.get(device, "o"), alpha=0.85, linewidths=0)
        for (x, y), device, ink in zip(points, granted.devices, granted.inks, strict=True)
    ]
    axes.set(xlabel="memory budget, MB", ylabel="mean rank over layers")
    axes.set_title("Mean rank under each client's memory budget", fontsize=10.5)
    axes.margins(x=0.14)
    _budget_axis(axes, points[:, 0])
    _rank_axis(axes, points[:, 1])
    quiet(axes)
    clusters = cluster_rows(granted.clusters)
    if None in granted.labels:
        clusters.append(("in none", "o", OUTSIDE))
    write_legend(figure, {"cluster": clusters, "device": marker_rows(marker)})
    places = print_places(figure, axes, points)
    shifts = side_by_side(points[:, 0], places[:, 1])
    for dot, shift in zip(dots, shifts, strict=True):
        move = ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans)
        dot.set_offset_transform(axes.transData + move)
    _name_devices(figure, axes, granted, places + [(shift, 0.0) for shift in shifts])
    return figure


def device_markers(granted: Granted) -> dict[str, str]:
    """A marker for each device, the smallest budget first."""
    least: dict[str, float] = {}
    for device, (budget, _) in zip(granted.devices, granted.points, strict=True):
        if device:
            least[device] = min(budget, least.get(device, math.inf))
    ordered = sorted(least, key=lambda device: (least[device], device))
    return {device: MARKERS[i % len(MARKERS)] for i, device in enumerate(ordered)}


def side_by_side(budgets: Floats, heights: Floats) -> list[float]:
    """Shift of each point to the side, so that few of one budget cover each other.

    Args:
        budgets: Of each client.
        heights: Of its point, in points of print.
    """
    shifts: list[float] = []
    for i, (budget, height) in enumerate(zip(budgets, heights, strict=True)):
        near = (budgets[:i] == budget) & (np.abs(heights[:i] - height) < BESIDE)
        full = {shift for shift, is_near in zip(shifts, near, strict=True) if is_near}
        shifts.append(next((s for s in map(_aside, range(MOST_BESIDE)) if s not in full), 0.0))
    return shifts


def _aside(turn: int) -> float:
    """In the middle first, then right and left by turns, ever further."""
    return BESIDE * ((turn + 1) // 2) * (1 if turn % 2 else -1)


def _budget_axis(axes: Axes, budgets: Floats) -> None:
    if budgets.max() < WIDE * budgets.min():
        return
    axes.set_xscale("log")
    named: list[float] = []
    for budget in sorted(set(budgets.tolist())):
        if not named or budget >= APART * named[-1]:
            named.append(budget)
    axes.set_xticks(named)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.5g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _rank_axis(axes: Axes, ranks: Floats) -> None:
    """Powers of two, at equal steps: what a rank adds falls as ranks grow."""
    least, most = math.floor(math.log2(ranks.min())), math.ceil(math.log2(ranks.max()))
    named = [2**power for power in range(least, most + 1)]
    axes.set_yscale("log", base=2)
    axes.set_ylim(named[0] / EDGE, named[-1] * EDGE)
    axes.set_yticks(named, [str(rank) for rank in named])
    axes.yaxis.set_minor_locator(NullLocator())


def _name_devices(figure: Figure, axes: Axes, granted: Granted, places: Floats) -> None:
    """Each device at its client with the highest rank; the legend tells the others' markers."""
    points, devices = granted.points, granted.devices
    highest = {devices[row]: row for row in np.argsort(points[:, 1], kind="stable").tolist()}
    rows = [row for device, row in highest.items() if device]
    if rows:
        names = [devices[row] for row in rows]
        taken = [box(place, BESIDE, BESIDE) for place in places]
        place_names(figure, axes, points[rows], names, [GREY] * len(rows), taken)
