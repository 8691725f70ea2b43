"""A benchmark as a table, as bars (a panel per figure) and as lines (against size)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, ScalarFormatter
from rich.console import Group
from rich.table import Table
from rich.text import Text

from atlas.report.figures.drawing import DPI, PALETTE, new_figure, quiet


def bench_view(found: Mapping[str, Any]) -> Group:
    """Rows, ratios and notes of a benchmark for people."""
    parts: list[Any] = [_rows_table(found["rows"])]
    if found["ratios"]:
        ratios = Table(title="ratios", title_justify="left", show_header=False, box=None)
        for name, value in found["ratios"].items():
            ratios.add_row(name, _figure(value))
        parts += [Text(), ratios]
    if found["notes"]:
        parts += [Text(), *(Text(note) for note in found["notes"])]
    return Group(*parts)


def _rows_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        words = any(isinstance(row.get(column), str) for row in rows)
        table.add_column(column.replace("_", " "), justify="left" if words else "right")
    for row in rows:
        table.add_row(*(_figure(row.get(column)) for column in columns))
    return table


def _figure(value: object) -> str:
    """Three digits that count; whole numbers and words as they are."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


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


MARKS = ("o", "s", "^", "D")


def draw_memory(rows: Rows, path: Path) -> None:
    """How cost grows, one line per contender."""
    figure = new_figure(11.0, 3.8)
    by_dim, by_length, memory = figure.subplots(1, 3)
    length, dim = _most_common(rows, "length"), _most_common(rows, "head_dim")
    of_length = [row for row in rows if row["length"] == length]
    of_dim = [row for row in rows if row["head_dim"] == dim]
    _lines(by_dim, of_length, "head_dim", "ms")
    by_dim.set_title(f"Milliseconds, {length} tokens", fontsize=10.5)
    _lines(by_length, of_dim, "length", "ms")
    by_length.set_title(f"Milliseconds, head dim {dim}", fontsize=10.5)
    _lines(memory, of_length, "head_dim", "peak_mb")
    memory.set_title(f"Memory in MB, {length} tokens", fontsize=10.5)
    by_dim.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=DPI)


def _most_common(rows: Rows, key: str) -> int:
    values = [row[key] for row in rows]
    return int(max(set(values), key=lambda value: (values.count(value), value)))


def _lines(axes: Axes, rows: Rows, x: str, y: str) -> None:
    for number, name in enumerate(dict.fromkeys(row["name"] for row in rows)):
        points = sorted((row[x], row[y]) for row in rows if row["name"] == name)
        ink = PALETTE[number % len(PALETTE)]
        axes.plot(*zip(*points, strict=True), marker=MARKS[number % 4], color=ink, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted({row[x] for row in rows}))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(x.replace("_", " "))
    quiet(axes)


def draw_memory_model(rows: Rows, path: Path) -> None:
    """Tokens a second of every contender, a panel for each length."""
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    figure = new_figure(4.6 * len(lengths), 0.9 + BAR * len(rows) / len(lengths))
    panels = figure.subplots(1, len(lengths), squeeze=False)[0]
    for axes, length in zip(panels, lengths, strict=True):
        own = [row for row in rows if row["length"] == length]
        inks = [PALETTE[0] if row["name"] == "memory" else OTHERS for row in own]
        rates = [row["tokens_per_second"] for row in own]
        draw_bars(axes, [row["name"] for row in own], rates, inks)
        axes.set_title(f"Tokens a second, texts of {length}", fontsize=10.5)
    figure.savefig(path, dpi=DPI)


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
