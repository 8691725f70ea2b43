"""What the pictures share: colours, figures without pyplot, quiet axes, and where files go.

Each picture is one file, named after its cohort where there are several.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from atlas.report.colours import PALETTE as PALETTE
from atlas.report.read.log import Events as Events
from atlas.report.read.log import Scored, validated
from atlas.runs.folder import RunFolder

Line = TypeVar("Line", str, int)

DPI = 110
EDGE = 0.08
"""Inches left free around axes."""


GREY = "#475569"
"""Of a legend's mark that stands for lines of several colours."""
ALONE_LINE: dict[str, Any] = {
    "linestyle": (0, (4, 2.5)),
    "linewidth": 1.3,
    "marker": "o",
    "markersize": 3,
    "markerfacecolor": "white",
}
"""How training alone is drawn beside a line of the same colour; hollow as its other marks are."""


def new_figure(width: float, height: float) -> Figure:
    """A figure in inches that is drawn to a file only."""
    layout = ConstrainedLayoutEngine(w_pad=EDGE, h_pad=EDGE)
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def mean_scores(
    events: Events, line_of: Callable[[str], Line | None], scored: Scored = "members"
) -> dict[Line, dict[int, float]]:
    """Mean validation score in percent, by line and round, both in order.

    Args:
        events: Of the run.
        line_of: The line a client counts for; None leaves it out.
        scored: Of what clients hold, or of training alone.
    """
    found: dict[Line, dict[int, list[float]]] = {}
    for client, scores in validated(events, "score", 100, scored).items():
        line = line_of(client)
        if line is not None:
            for number, score in scores.items():
                found.setdefault(line, {}).setdefault(number, []).append(score)
    return {
        line: {number: statistics.fmean(found[line][number]) for number in sorted(rounds)}
        for line, rounds in sorted(found.items())
    }


def score_axes(axes: Axes, title: str) -> None:
    """Name the axes of scores over rounds."""
    axes.set(xlabel="round", ylabel="validation score, %", title=title)
    whole_rounds(axes)
    least_span(axes)
    quiet(axes)


def whole_rounds(axes: Axes) -> None:
    """Rounds are whole, also where there is only one."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    low, high = axes.dataLim.intervalx
    if low == high:
        axes.set_xlim(low - 0.5, high + 0.5)
        axes.set_xticks([low])


def least_span(axes: Axes, points: float = 4.0) -> None:
    """Scores that differ by little must look so: no axis shows less than so many points."""
    low, high = axes.get_ylim()
    if high - low < points:
        middle = (low + high) / 2
        axes.set_ylim(middle - points / 2, middle + points / 2)


WIDE = 6.0
"""Times by which values must differ for equal steps to be equal factors."""


def log_if_wide(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic axis where values differ by much, with plain numbers at 1, 2 and 5."""
    known = [value for value in values if value > 0]
    if not known or max(known) < WIDE * min(known):
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def quiet(axes: Axes) -> None:
    """No box, faint lines to read heights by."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)


def save_figures(
    folder: RunFolder, figures: Mapping[str, Iterable[tuple[str, Figure]]]
) -> list[Path]:
    """Write pictures into a run's folder.

    Args:
        folder: The run.
        figures: By cohort, each with its name; drawn one at a time.

    Returns:
        The files.
    """
    suffixes = file_suffixes(list(figures))
    written = []
    for cohort, pictures in figures.items():
        for name, figure in pictures:
            if len(figures) > 1:
                figure.suptitle(cohort)
            folder.plots.mkdir(exist_ok=True)
            written.append(folder.plots / f"{name}{suffixes[cohort]}.png")
            figure.savefig(written[-1], dpi=DPI)
    return written


def file_suffixes(cohorts: list[str]) -> dict[str, str]:
    """What to add to file names: nothing for one cohort; no two are alike.

    A backbone can be named by a path, so only plain characters are kept.
    """
    if len(cohorts) == 1:
        return {cohorts[0]: ""}
    suffixes: dict[str, str] = {}
    for cohort in cohorts:
        plain = "-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", cohort)[-48:].strip("-.")
        while plain in suffixes.values():
            plain += "-other"
        suffixes[cohort] = plain
    return suffixes
