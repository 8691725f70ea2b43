"""Pictures of ranks granted under memory budgets, drawn from a run folder's events alone.

One shows the ranks of every layer, one what a larger budget buys: mean rank against memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from atlas.report.figures.drawing import new_figure, quiet, save_figures
from atlas.report.figures.heatmaps import COLOURS
from atlas.report.figures.points import (
    GREY,
    MARKERS,
    Floats,
    box,
    cluster_rows,
    marker_rows,
    place_names,
    print_places,
    write_legend,
)
from atlas.report.read.cohorts import OUTSIDE, GrantedCohort, label_borders, read_granted
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder

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


def memory_figure(granted: GrantedCohort) -> Figure:
    """Mean rank against memory: colour by cluster, marker by device, which is named once.

    Memory is what the budget leaves above the fixed part, which grows with a client's texts and not
    with its device. Clients of one size whose ranks are too close to be told apart stand side by
    side.
    """
    figure = new_figure(8.2, 4.8)
    axes = figure.subplots()
    points, marker = granted.points, device_markers(granted)
    dots = [
        axes.scatter(x, y, 46, ink, marker=marker.get(device, "o"), alpha=0.85, linewidths=0)
        for (x, y), device, ink in zip(points, granted.devices, granted.inks, strict=True)
    ]
    axes.set(xlabel="MB left for adapters, above weights and activations", ylabel="mean rank")
    axes.set_title("Mean rank against what each device has to give", fontsize=10.5)
    axes.margins(x=0.14)
    _budget_axis(axes, points[:, 0])
    _mean_rank_axis(axes, points[:, 1])
    quiet(axes)
    clusters = cluster_rows(granted.clusters, granted.slots)
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


def device_markers(granted: GrantedCohort) -> dict[str, str]:
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
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _mean_rank_axis(axes: Axes, ranks: Floats) -> None:
    """Powers of two, at equal steps: what a rank adds falls as ranks grow."""
    least, most = math.floor(math.log2(ranks.min())), math.ceil(math.log2(ranks.max()))
    named = [2**power for power in range(least, most + 1)]
    axes.set_yscale("log", base=2)
    axes.set_ylim(named[0] / EDGE, named[-1] * EDGE)
    axes.set_yticks(named, [str(rank) for rank in named])
    axes.yaxis.set_minor_locator(NullLocator())


def _name_devices(figure: Figure, axes: Axes, granted: GrantedCohort, places: Floats) -> None:
    """Each device at its client with the highest rank; the legend tells the others' markers."""
    points, devices = granted.points, granted.devices
    highest = {devices[row]: row for row in np.argsort(points[:, 1], kind="stable").tolist()}
    rows = [row for device, row in highest.items() if device]
    if rows:
        names = [devices[row] for row in rows]
        taken = [box(place, BESIDE, BESIDE) for place in places]
        place_names(figure, axes, points[rows], names, [GREY] * len(rows), taken)


ROW, COLUMN = 0.27, 0.36
"""Inches of a heatmap's cell, as long as all of them fit."""
TALLEST, WIDEST = 10.0, 9.0
"""Inches of all cells together."""
LEAST_CELL = 0.19
"""Inches of a cell in which a number, and beside which a name, can still be read."""
MOST_RANKS = 9
"""Ranks named along an axis."""


def plot_ranks(folder: RunFolder) -> list[Path]:
    """Draw the ranks each cohort was granted; nothing for a run with fixed ranks.

    Args:
        folder: The run.

    Returns:
        The pictures written, named after their cohort where there are several.
    """
    found = read_granted(read_events(folder.events))
    return save_figures(folder, {granted.cohort: rank_figures(granted) for granted in found})


def rank_figures(granted: GrantedCohort) -> Iterator[tuple[str, Figure]]:
    """Names and figures of one cohort."""
    yield "ranks", ranks_figure(granted)
    yield "rank-memory", memory_figure(granted)


def ranks_figure(granted: GrantedCohort) -> Figure:
    """The span of every client's ranks, and beside it the rank of every layer."""
    count, layers = granted.ranks.shape
    tall, wide = min(TALLEST, ROW * count), min(WIDEST, COLUMN * layers)
    figure = new_figure(6.2 + max(1.6, wide), max(3.2, 2.0 + tall))
    spans, cells = figure.subplots(1, 2, sharey=True, width_ratios=[3.4, max(1.6, wide) + 0.9])
    draw_cells(cells, granted, room=(tall / count, wide / layers))
    draw_spans(spans, granted)
    _name_clients(spans, granted, tall / count)
    cells.tick_params(axis="y", left=False, labelleft=False)
    return figure


def draw_spans(axes: Axes, granted: GrantedCohort) -> None:
    """A bar from the least to the most rank of each client, with a dot at the mean."""
    ranks, places = granted.ranks, range(len(granted.clients))
    least, most = ranks.min(1), ranks.max(1)
    axes.hlines(places, least, most, colors=granted.inks, linewidth=5, alpha=0.35)
    for ends in (least, most):
        axes.scatter(ends, places, 34, granted.inks, marker="|", linewidths=1.6)
    axes.scatter(ranks.mean(1), places, 22, granted.inks, zorder=3)
    _rank_axis(axes, ranks)
    quiet(axes)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", alpha=0.25)
    for place in label_borders(granted.labels):
        axes.axhline(place - 0.5, color="#cbd5e1", linewidth=0.8)
    axes.set_title("Least, mean and most rank", fontsize=10.5)
    axes.set_xlabel("rank")


def _rank_axis(axes: Axes, ranks: Floats) -> None:
    """Ranks double from choice to choice, so equal steps are equal factors."""
    named = named_ranks(ranks)
    axes.set_xscale("log", base=2)
    axes.set_xlim(ranks.min() / 1.3, ranks.max() * 1.3)
    axes.set_xticks(named, [str(rank) for rank in named])
    axes.xaxis.set_minor_locator(NullLocator())


def named_ranks(ranks: Floats) -> list[int]:
    """Ranks that occur, rising; of many only some, the largest among them."""
    found = sorted({int(rank) for rank in ranks.flat})
    return found[:: -math.ceil(len(found) / MOST_RANKS)][::-1]


def draw_cells(axes: Axes, granted: GrantedCohort, room: tuple[float, float]) -> None:
    """Clients by layers; ranks are written into their cells where those are large enough."""
    ranks = granted.ranks
    norm = LogNorm(ranks.min(), max(ranks.max(), 2 * ranks.min()))
    image = axes.imshow(ranks, cmap=COLOURS, norm=norm, interpolation="nearest", aspect="auto")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, fraction=0.08, aspect=60)
    bar.set_ticks(named_ranks(ranks), labels=[str(rank) for rank in named_ranks(ranks)])
    bar.outline.set_visible(False)
    bar.ax.minorticks_off()
    if min(room) >= LEAST_CELL:
        for (row, column), rank in np.ndenumerate(ranks):
            ink = "white" if norm(rank) < 0.6 else "black"
            axes.text(column, row, f"{rank:.0f}", ha="center", va="center", color=ink, fontsize=7.5)
    for place in label_borders(granted.labels):
        axes.axhline(place - 0.5, color="white", linewidth=1.6)
    places = _thinned(len(granted.modules), room[1])
    axes.set_xticks(places, [granted.modules[i] for i in places], rotation=90, fontsize=8)
    axes.set_title("Rank of each layer", fontsize=10.5)
    axes.spines[:].set_visible(False)


def _name_clients(axes: Axes, granted: GrantedCohort, room: float) -> None:
    """Ids with their devices, in the colours of their clusters."""
    places = _thinned(len(granted.clients), room)
    devices = [f" ({device})" if device else "" for device in granted.devices]
    axes.set_yticks(places, [granted.clients[i] + devices[i] for i in places], fontsize=8)
    for place, label in zip(places, axes.get_yticklabels(), strict=True):
        label.set_color(granted.inks[place])


def _thinned(count: int, room: float) -> Sequence[int]:
    """Places to name: all, or every so many where there is little room."""
    return list(range(0, count, max(1, math.ceil(LEAST_CELL / room))))
