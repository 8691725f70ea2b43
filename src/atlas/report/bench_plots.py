"""Benchmarks as bars: one panel per figure, one bar per contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from atlas.report.figures.drawing import DPI, PALETTE, new_figure, quiet

Rows = Sequence[Mapping[str, Any]]

OURS = "atlas"
OTHERS = "#94a3b8"
COLUMNS = {
    "seconds_round": "Seconds a round",
    "seconds_first_round": "Seconds to the end of the first round",
    "peak_mb": "Peak memory, MB",
}
BAR = 0.36
"""Inches of a bar and the room around it."""


def draw_federation(rows: Rows, path: Path) -> None:
    """Seconds and memory of every contender, a row of panels per case."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    own = {case: [row for row in rows if row["case"] == case] for case in cases}
    counts = [len(own[case]) for case in cases]
    figure = new_figure(11.0, 0.4 + 0.45 * len(cases) + BAR * sum(counts))
    grid = figure.subplots(len(cases), len(COLUMNS), squeeze=False, height_ratios=counts)
    for line, case in zip(grid, cases, strict=True):
        names = [row["name"] for row in own[case]]
        inks = [PALETTE[0] if name == OURS else OTHERS for name in names]
        for axes, (column, title) in zip(line, COLUMNS.items(), strict=True):
            draw_bars(axes, names, [row[column] for row in own[case]], inks)
            axes.set_title(title if case == cases[0] else "", fontsize=10.5)
        line[0].set_ylabel(case, fontsize=10.5)
        for axes in line[1:]:
            axes.tick_params(labelleft=False)
    figure.savefig(path, dpi=DPI)


def draw_startup(rows: Rows, path: Path) -> None:
    """Seconds until each command has answered, ours in colour."""
    names = [row["command"] for row in rows]
    figure = new_figure(7.5, 0.9 + BAR * len(rows))
    axes = figure.subplots()
    inks = [PALETTE[0] if OURS in name else OTHERS for name in names]
    draw_bars(axes, names, [row["seconds"] for row in rows], inks)
    axes.set_title("Seconds until a command has answered", fontsize=10.5)
    figure.savefig(path, dpi=DPI)


def draw_bars(
    axes: Axes, names: Sequence[str], values: Sequence[float], inks: Sequence[str]
) -> None:
    """Bars from the left, the first on top, with their figures at the end."""
    places = range(len(names))
    axes.barh(places, values, color=inks, height=0.62)
    axes.set_yticks(places, names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1.22 * max(values))  # room for the figures
    for place, value in zip(places, values, strict=True):
        text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        axes.annotate(
            text, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9
        )
    quiet(axes)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=5)
