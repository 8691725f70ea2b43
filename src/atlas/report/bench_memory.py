"""`atlas bench memory` as lines: milliseconds against head dim and against length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, ScalarFormatter

from atlas.report.figures.drawing import DPI, PALETTE, new_figure, quiet

Rows = Sequence[Mapping[str, Any]]
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
