"""A server's seconds and memory against the number of clients, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from atlas.report.figures.drawing import DPI, PALETTE, new_figure, quiet

Rows = Sequence[Mapping[str, Any]]
FAINT = "#94a3b8"


def draw_server(rows: Rows, path: Path) -> None:
    """Seconds to plan and to mix on the left, memory and state on disk on the right."""
    figure = new_figure(9.4, 4.0)
    seconds, memory = figure.subplots(1, 2)
    clients = [row["clients"] for row in rows]
    for ink, column, label in (
        (PALETTE[0], "mix_seconds", "mix"),
        (PALETTE[1], "plan_seconds", "plan"),
    ):
        draw_line(seconds, clients, [row[column] for row in rows], ink, label)
    level = rows[-1]["mix_seconds"] / clients[-1]
    draw_guide(seconds, clients, level, "in proportion to n")
    for ink, column, label in (
        (PALETTE[2], "peak_gb", "peak resident memory"),
        (PALETTE[7], "state_gb", "adapters on disk"),
    ):
        draw_line(memory, clients, [row[column] for row in rows], ink, label)
    name_axes(seconds, "seconds", "Planned and mixed once")
    name_axes(memory, "GB", "Memory of the server")
    figure.savefig(path, dpi=DPI)


def draw_line(
    axes: Axes, clients: Sequence[int], values: Sequence[float], ink: str, label: str
) -> None:
    """One measured line, its last figure written beside it."""
    axes.plot(clients, values, marker="o", markersize=4, color=ink, label=label)
    axes.annotate(
        f"{values[-1]:.3g}",
        (clients[-1], values[-1]),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        color=ink,
        fontsize=9,
    )


def draw_guide(axes: Axes, clients: Sequence[int], each: float, label: str) -> None:
    """What `each` client would cost if nothing else did."""
    ends = [clients[0], clients[-1]]
    axes.plot(ends, [each * n for n in ends], color=FAINT, linestyle=":", label=label, zorder=0)


def name_axes(axes: Axes, unit: str, title: str) -> None:
    """Logarithmic axes with plain figures."""
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel=unit)
    axes.set_title(title, fontsize=10.5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, (1.0,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())
    # Room on the right for the last figures.
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * 1.5)
    quiet(axes)
    axes.legend(frameon=False, fontsize=9)
