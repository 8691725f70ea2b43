"""Pictures of a study, drawn from the result that `atlas compare` writes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atlas.report.colours import ALONE, CEILING, FEDERATED, MAJORITY, PALETTE
from atlas.report.figures.drawing import DPI, least_span, new_figure, quiet
from atlas.report.read.studies import (
    Row,
    columns_of,
    distance_of,
    is_relation,
    rows_by_arm,
    swept_keys,
)
from atlas.report.tables.runs import task_text

LINES = tuple(PALETTE[slot] for slot in (0, 3, 5, 6, 4, 8, 9, 7))
"""Colours unlike those of the majority and the ceiling, which every panel shows."""
MARKS = "os^D"
COLUMNS = 4
WIDEST = 24
"""Letters of an arm's name in one line."""
LETTER = 0.085
"""Inches that a letter takes."""
DASHES = {"first": "--", "last": "-"}
"""Of the lines of distance: the first round and the last."""


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


def _arms_figure(result: Mapping[str, Any]) -> Figure:
    """A mark per arm at its mean with its spread, a dot per seed; what to measure by as lines.

    The axis does not start at zero, where differences would be lost.
    """
    arms: dict[str, list[float]] = {}
    for row in result["rows"]:
        lines = [fill(str(value), WIDEST) for value in columns_of(row).values()]
        arms.setdefault("\n".join(lines) or row["arm"], []).append(100 * row["mean"])
    longest = max(len(line) for name in arms for line in name.splitlines())
    figure = new_figure(max(4.5, 1.8 + len(arms) * max(0.9, LETTER * (longest + 2))), 4.4)
    axes = figure.subplots()
    for place, means in enumerate(arms.values()):
        mean = statistics.fmean(means)
        first = place == 0
        axes.errorbar(place, mean, _spread(means), fmt="D", color=FEDERATED, markersize=7,
                      capsize=5, label="mean" if first else "_nolegend_")  # fmt: skip
        # Above the frame, where no dot and no line can cover it.
        top = axes.get_xaxis_transform()
        axes.text(place, 1.01, f"{mean:.1f}", ha="center", va="bottom", transform=top)
        if len(means) > 1:
            spread = [place + 0.12 + offset for offset in _offsets(len(means), 0.16)]
            label = "one seed" if first else "_nolegend_"
            axes.plot(spread, means, "o", color="k", markersize=3.5, alpha=0.6, label=label)
    alone = (result.get("alone") or {}).get("mean")
    _levels(axes, result, result["ceiling"], alone, _guess(result))
    axes.set_xticks(range(len(arms)), list(arms))
    axes.set_xlim(-0.6, len(arms) - 0.4)
    axes.set(xlabel=", ".join(columns_of(result["rows"][0])), ylabel="mean test score, %")
    least_span(axes)
    _finish(figure, [axes], f"{result['study']}\n{seeds_told(result['rows'])}")
    return figure


def _spread(values: Sequence[float]) -> float | None:
    """One standard deviation over seeds; None where there is one seed, which tells none."""
    return statistics.stdev(values) if len(values) > 1 else None


def seeds_told(rows: Sequence[Row]) -> str:
    """What the bars are, or why there are none."""
    count = max(len(own) for own in rows_by_arm(rows).values())
    if count > 1:
        return f"bars: one standard deviation over {count} seeds"
    return "one seed: no error bars, and small differences may be chance"


def _sweep_figure(result: Mapping[str, Any], key: str) -> Figure:
    """One panel per task over the values of a key; one line for each choice of the other keys.

    A key of `relation` has one panel more: how far apart it leaves clients of one cluster.
    """
    tasks, rows = result["tasks"], result["rows"]
    far = is_relation(key) and any(distance_of(row, "last") is not None for row in rows)
    count = len(tasks) + far
    columns = min(COLUMNS, count)
    lines = -(-count // columns)
    figure = new_figure(max(4.5, 1 + 3.1 * columns), 0.9 + 3 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).flatten().tolist()
    for axes in panels[::columns]:
        axes.set_ylabel("test score, %")
    for axes, (task, found) in zip(panels, tasks.items(), strict=False):
        _draw_sweep(axes, rows, key, _score_in(task))
        _levels(axes, found, found["ceiling"], found.get("alone"), _guess(result))
        chance = ", at chance" if found["at_chance"] else ""
        axes.set(title=task_text(task, found["metric"]) + chance, xlabel=key)
        least_span(axes)
    if far:
        _draw_distances(panels[len(tasks)], rows, key)
    for axes in panels[count:]:
        axes.set_visible(False)
    _finish(figure, panels[:count], f"{result['study']}\n{seeds_told(rows)}")
    return figure


def _score_in(task: str) -> Callable[[Row], float | None]:
    """What reads a row's score of a task in percent."""
    return lambda row: 100 * row["tasks"][task] if task in row["tasks"] else None


def _draw_sweep(
    axes: Axes,
    rows: Sequence[Row],
    key: str,
    value_of: Callable[[Row], float | None],
    dashes: str = "-",
    named: bool = True,
) -> None:
    """Means over seeds with their spread; values stand at equal distances, whatever their scale."""
    values = sorted({row["keys"][key] for row in rows})
    lines: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        points, found = lines.setdefault(_line(row, key), {}), value_of(row)
        if found is not None:
            points.setdefault(row["keys"][key], []).append(found)
    # Lines stand a little apart, so that bars of spread do not hide each other.
    shifts = _offsets(len(lines), min(0.3, 0.06 * (len(lines) - 1)))
    for number, ((label, points), shift) in enumerate(zip(lines.items(), shifts, strict=True)):
        several = any(len(found) > 1 for found in points.values())
        axes.errorbar(
            [values.index(value) + shift for value in sorted(points)],
            [statistics.fmean(points[value]) for value in sorted(points)],
            [_spread(points[value]) or 0.0 for value in sorted(points)] if several else None,
            color=LINES[number % len(LINES)],
            # Beyond the last colour they begin again, with another mark.
            marker=MARKS[number // len(LINES) % len(MARKS)],
            markersize=4,
            capsize=3,
            linewidth=1.5,
            linestyle=dashes,
            label=label if named else "_nolegend_",
        )
    axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axes.set_xlim(-0.4, len(values) - 0.6)


def _draw_distances(axes: Axes, rows: Sequence[Row], key: str) -> None:
    """How far apart mixed clients of one cluster are, after the first round and after the last."""
    for end, dashes in DASHES.items():
        _draw_sweep(axes, rows, key, partial(distance_of, end=end), dashes, False)
        # The colours are those of the other panels; only the dashes are new to the legend.
        axes.plot([], [], color="k", linewidth=1.5, linestyle=dashes, label=f"{end} round")
    found = [distance_of(row, end) for row in rows for end in DASHES]
    if all(value > 0 for value in found if value is not None):
        axes.set_yscale("log")
    axes.set(title="Distance within clusters", xlabel=key, ylabel="distance once mixed")


def _line(row: Row, key: str) -> str:
    """The name of the line that a row belongs to: its arm and the values of the other keys."""
    others = {name: value for name, value in columns_of(row).items() if name != key}
    words = [str(value) if name == "arm" else f"{name}={value}" for name, value in others.items()]
    return ", ".join(words) or "mean over seeds"


def _offsets(count: int, width: float) -> list[float]:
    """So many places from side to side, around zero."""
    return [width * (n / (count - 1) - 0.5) if count > 1 else 0.0 for n in range(count)]


def _guess(result: Mapping[str, Any]) -> str:
    """What to call the score of not reading: memory runs have no majority."""
    return "chance" if result.get("kind") == "memory" else "majority"


def _levels(
    axes: Axes,
    found: Mapping[str, Any],
    ceiling: float | None,
    alone: float | None,
    guess: str,
) -> None:
    """What arms are measured by: the majority, training alone and the ceiling, where known."""
    known = ((guess, found["majority"], MAJORITY, "--"), ("alone", alone, ALONE, "-."),
             ("ceiling", ceiling, CEILING, ":"))  # fmt: skip
    for name, value, colour, dashes in known:
        if value is not None:
            axes.axhline(100 * value, color=colour, linewidth=1.5, linestyle=dashes, label=name)


def _finish(figure: Figure, panels: Sequence[Axes], title: str) -> None:
    """One legend below all panels, where it covers no data."""
    for axes in panels:
        quiet(axes)
        axes.set_axisbelow(True)
    both = [axes.get_legend_handles_labels() for axes in panels]
    found = {
        name: handle for handles, names in both for handle, name in zip(handles, names, strict=True)
    }
    handles, labels = list(found.values()), list(found)
    widest = LETTER * max(len(label) for label in labels) + 0.7
    columns = max(1, int(figure.get_figwidth() / widest))
    figure.set_figheight(figure.get_figheight() + 0.2 * ((len(labels) - 1) // columns))
    figure.legend(handles, labels, frameon=False, ncols=columns, loc="outside lower center")
    figure.suptitle(title, fontsize="medium")
