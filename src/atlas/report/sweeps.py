"""Pictures of a study, drawn from the result that `atlas compare` writes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atlas.report.drawing import DPI, new_figure, quiet
from atlas.report.plots import FEDERATED, MAJORITY
from atlas.report.tables import task_text

CEILING = "#15803d"
LINES = ("#2563a8", "#d97706", "#7c3aed", "#0d9488", "#be185d", "#4b5563", "#65a30d", "#92400e")
"""Colours unlike those of the majority and the ceiling, which every panel shows."""
MARKS = "os^D"
COLUMNS = 4
WIDEST = 24
"""Letters of an arm's name in one line."""
LETTER = 0.085
"""Inches that a letter takes."""
Row = Mapping[str, Any]


def plot_study(folder: Path, result: Mapping[str, Any]) -> None:
    """Draw the arms into `plots/arms.png` and every compared number into `plots/sweep-<key>.png`.

    Args:
        folder: The folder of the study.
        result: What `compare.json` holds.
    """
    plots = folder / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    _arms_figure(result).savefig(plots / "arms.png", dpi=DPI)
    for key in swept_keys(result["rows"]):
        _sweep_figure(result, key).savefig(plots / f"sweep-{key}.png", dpi=DPI)


def swept_keys(rows: Sequence[Row]) -> list[str]:
    """The compared keys whose values are all numbers; the seed is not compared but averaged."""
    return [key for key in _others(rows[0]) if all(_is_number(row["keys"][key]) for row in rows)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _arms_figure(result: Mapping[str, Any]) -> Figure:
    """One bar per arm: its mean, a dot per seed, and the majority and the ceiling as lines."""
    arms: dict[str, list[float]] = {}
    for row in result["rows"]:
        lines = [fill(str(value), WIDEST) for value in _others(row).values()]
        arms.setdefault("\n".join(lines) or row["arm"], []).append(100 * row["mean"])
    longest = max(len(line) for name in arms for line in name.splitlines())
    figure = new_figure(max(4.5, 1.8 + len(arms) * max(0.9, LETTER * (longest + 2))), 4.4)
    axes = figure.subplots()
    for place, means in enumerate(arms.values()):
        mean = statistics.fmean(means)
        axes.bar(place, mean, 0.62, color=FEDERATED, alpha=0.75)
        # Above the frame, where no dot and no line can cover it.
        top = axes.get_xaxis_transform()
        axes.text(place, 1.01, f"{mean:.1f}", ha="center", va="bottom", transform=top)
        label = "one seed" if place == 0 else "_nolegend_"
        spread = [place + offset for offset in _offsets(len(means), 0.4)]
        axes.plot(spread, means, "o", color="k", markersize=3.5, alpha=0.7, label=label)
    _levels(axes, result["majority"], result["ceiling"])
    axes.set_xticks(range(len(arms)), list(arms))
    axes.set_xlim(-0.6, len(arms) - 0.4)
    axes.set(xlabel=", ".join(_others(result["rows"][0])), ylabel="mean test score, %")
    _finish(figure, [axes], result["study"])
    return figure


def _sweep_figure(result: Mapping[str, Any], key: str) -> Figure:
    """One panel per task over the values of a key; one line for each choice of the other keys."""
    tasks = result["tasks"]
    columns = min(COLUMNS, len(tasks))
    lines = -(-len(tasks) // columns)
    figure = new_figure(max(4.5, 1 + 3.1 * columns), 0.9 + 3 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).flatten().tolist()
    for axes, (task, found) in zip(panels, tasks.items(), strict=False):
        _draw_sweep(axes, result["rows"], key, task)
        _levels(axes, found["majority"], found["ceiling"])
        chance = ", at chance" if found["at_chance"] else ""
        axes.set(title=task_text(task, found["metric"]) + chance, xlabel=key)
    for axes in panels[::columns]:
        axes.set_ylabel("test score, %")
    for axes in panels[len(tasks) :]:
        axes.set_visible(False)
    _finish(figure, panels[: len(tasks)], result["study"])
    return figure


def _draw_sweep(axes: Axes, rows: Sequence[Row], key: str, task: str) -> None:
    """Means over seeds with their spread; values stand at equal distances, whatever their scale."""
    values = sorted({row["keys"][key] for row in rows})
    lines: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        points = lines.setdefault(_line(row, key), {})
        if task in row["tasks"]:
            points.setdefault(row["keys"][key], []).append(100 * row["tasks"][task])
    # Lines stand a little apart, so that bars of spread do not hide each other.
    shifts = _offsets(len(lines), min(0.3, 0.06 * (len(lines) - 1)))
    for number, ((label, points), shift) in enumerate(zip(lines.items(), shifts, strict=True)):
        axes.errorbar(
            [values.index(value) + shift for value in sorted(points)],
            [statistics.fmean(points[value]) for value in sorted(points)],
            [statistics.pstdev(points[value]) for value in sorted(points)],
            color=LINES[number % len(LINES)],
            # Beyond the last colour they begin again, with another mark.
            marker=MARKS[number // len(LINES) % len(MARKS)],
            markersize=4,
            capsize=3,
            linewidth=1.5,
            label=label,
        )
    axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axes.set_xlim(-0.4, len(values) - 0.6)


def _line(row: Row, key: str) -> str:
    """The name of the line that a row belongs to: the values of the other keys."""
    return ", ".join(f"{k}={v}" for k, v in _others(row, key).items()) or "mean over seeds"


def _others(row: Row, but: str = "seed") -> dict[str, object]:
    """A row's compared keys and their values, but for the seed and one key."""
    return {key: value for key, value in row["keys"].items() if key not in ("seed", but)}


def _offsets(count: int, width: float) -> list[float]:
    """So many places from side to side, around zero."""
    return [width * (n / (count - 1) - 0.5) if count > 1 else 0.0 for n in range(count)]


def _levels(axes: Axes, majority: float, ceiling: float | None) -> None:
    axes.axhline(100 * majority, color=MAJORITY, linewidth=1.5, linestyle="--", label="majority")
    if ceiling is not None:
        axes.axhline(100 * ceiling, color=CEILING, linewidth=1.5, linestyle=":", label="ceiling")


def _finish(figure: Figure, panels: Sequence[Axes], title: str) -> None:
    """One legend below all panels, where it covers no data."""
    for axes in panels:
        quiet(axes)
        axes.set_axisbelow(True)
    handles, labels = panels[0].get_legend_handles_labels()
    widest = LETTER * max(len(label) for label in labels) + 0.7
    columns = max(1, int(figure.get_figwidth() / widest))
    figure.set_figheight(figure.get_figheight() + 0.2 * ((len(labels) - 1) // columns))
    figure.legend(handles, labels, frameon=False, ncols=columns, loc="outside lower center")
    figure.suptitle(title, fontsize="medium")
