"""The rounds of a federation in pictures: losses, gates, routing and steps.

Each picture is drawn from events alone, and left out where a run has none of its kind.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from atlas.report.colours import colour, task_slots
from atlas.report.figures.drawing import (
    ALONE_LINE,
    GREY,
    PALETTE,
    Events,
    new_figure,
    quiet,
    save_figures,
    whole_rounds,
)
from atlas.report.read.log import by_client, grouped, read_tasks, shrunk, validated
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder

MOST_PANELS = 12
"""Clients whose masks are drawn."""
MASK = ListedColormap(["#e5e7eb", PALETTE[0]])
Series = dict[str, dict[int, list[float]]]
"""Numbers by line and round."""


def plot_rounds(folder: RunFolder) -> list[Path]:
    """Draw what a run has to show of its rounds."""
    return save_figures(folder, {"": round_figures(read_events(folder.events))})


def round_figures(events: Events) -> Iterator[tuple[str, Figure]]:
    """Names and figures, one at a time; those without data are left out."""
    tasks = read_tasks(events)
    losses = losses_figure(events, tasks)
    if losses is not None:
        yield "losses", losses
    gates = gates_figure(events, tasks)
    if gates is not None:
        yield "gates", gates
    routing = routing_figure(events)
    if routing is not None:
        yield "routing", routing
    steps = steps_figure(events, tasks)
    if steps is not None:
        yield "steps", steps


def losses_figure(events: Events, tasks: Mapping[str, str]) -> Figure | None:
    """Training and validation loss by task: the mean of its clients, and all of them as a band.

    The validation loss of training alone is dashed, without a band.
    """
    told = (by_client(events, "fitted", "loss"), validated(events, "loss"))
    trained, checked = (grouped(found, tasks) for found in told)
    solo = grouped(validated(events, "loss", scored="alone"), tasks)
    if not trained:
        return None
    figure = new_figure(10.4, 4.0)
    left, right = figure.subplots(1, 2)
    draw_bands(left, trained, tasks)
    left.set(xlabel="round", ylabel="loss", title="Training: mean and range of each task's clients")
    slots = task_slots(tasks.values())
    for task, rounds in solo.items():
        means = [statistics.fmean(losses) for losses in rounds.values()]
        right.plot(list(rounds), means, **ALONE_LINE, color=colour(slots.get(task, 0)))
    draw_bands(right, checked, tasks)
    right.set(xlabel="round", ylabel="loss", title="Validation")
    if solo:
        right.plot([], [], **ALONE_LINE, color=GREY, label="training alone")
        right.legend(handles=right.lines[-1:], frameon=False)
    if checked:
        left.legend(frameon=False)
    return figure


def draw_bands(axes: Axes, lines: Series, tasks: Mapping[str, str]) -> None:
    """Means over rounds, and from the least to the most as a band around them, a task a colour."""
    slots = task_slots(tasks.values())
    for line, rounds in sorted(lines.items()):
        places = sorted(rounds)
        ink = colour(slots.get(line, 0))
        means = [statistics.fmean(rounds[place]) for place in places]
        axes.plot(places, means, color=ink, label=line, marker="o", markersize=2.5)
        low, high = ([pick(rounds[place]) for place in places] for pick in (min, max))
        axes.fill_between(places, low, high, color=ink, alpha=0.13, linewidth=0)
    whole_rounds(axes)
    quiet(axes)


def gates_figure(events: Events, tasks: Mapping[str, str]) -> Figure | None:
    """What others count over the rounds, by task and by module; None without gates."""
    told = [event for event in events if event["event"] == "fitted" and event.get("beta")]
    if not told:
        return None
    lines: Series = {}
    modules: dict[int, list[list[float]]] = {}
    for event in told:
        rounds = lines.setdefault(tasks.get(event["client"], "all"), {})
        rounds.setdefault(event["round"], []).append(statistics.fmean(event["beta"]))
        modules.setdefault(event["round"], []).append(event["beta"])
    figure = new_figure(10.4, 4.0)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    draw_bands(left, lines, tasks)
    left.axhline(0.5, color="#9aa5b1", linestyle=":", linewidth=1)
    left.set(xlabel="round", ylabel="beta", title="What stands beside counts, of 1", ylim=(0, 1))
    left.legend(frameon=False)
    places = sorted(modules)
    means = np.array([np.mean(_even(modules[place]), axis=0) for place in places]).T
    _image(right, means, places, "Mean of all clients, by adapted module")
    return figure


def steps_figure(events: Events, tasks: Mapping[str, str]) -> Figure | None:
    """What clients are to keep of their own and the step they took; None without estimates."""
    keep, eta = (grouped(shrunk(events, name), tasks) for name in ("keep", "eta"))
    if not keep:
        return None
    figure = new_figure(10.4, 4.0)
    left, right = figure.subplots(1, 2)
    draw_bands(left, keep, tasks)
    left.set(xlabel="round", ylabel="c", title="Deviation to be left in the end, of 1", ylim=(0, 1))
    draw_bands(right, eta, tasks)
    right.set(xlabel="round", ylabel="eta", title="Step toward the neighbours' mean", ylim=(0, 1))
    left.legend(frameon=False)
    return figure


def _even(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Rows of one length: where backbones differ in their modules, what all have."""
    least = min(len(row) for row in rows)
    return np.array([row[:least] for row in rows], dtype=np.float64)


def _image(axes: Axes, values: NDArray[np.float64], rounds: Sequence[int], title: str) -> None:
    high = len(values) - 0.5
    extent = (rounds[0] - 0.5, rounds[-1] + 0.5, high, -0.5)
    image = axes.imshow(values, aspect="auto", vmin=0, vmax=1, cmap="viridis", extent=extent)
    axes.figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02).outline.set_visible(False)
    axes.set(xlabel="round", ylabel="module", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[:].set_visible(False)


def routing_figure(events: Events) -> Figure | None:
    """Which modules travelled for whom in which round, and the bytes; None if all always did."""
    routed = [event for event in events if event["event"] == "routed"]
    if not routed:
        return None
    masks: dict[str, dict[int, list[bool]]] = {}
    for event in routed:
        for client, mask in event["open"].items():
            masks.setdefault(client, {})[event["round"]] = mask
    shown = sorted(masks)[:MOST_PANELS]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = new_figure(2.9 * columns, 1.75 * rows + 0.6)
    panels = np.atleast_1d(figure.subplots(rows, columns, sharex=True)).flatten()
    for axes, client in zip(panels, shown, strict=False):
        rounds = sorted(masks[client])
        values = np.array([masks[client][number] for number in rounds], dtype=np.float64).T
        extent = (rounds[0] - 0.5, rounds[-1] + 0.5, len(values) - 0.5, -0.5)
        axes.imshow(values, aspect="auto", cmap=MASK, vmin=0, vmax=1, extent=extent)
        axes.set_title(f"{client}, {values.mean():.0%} open", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[:].set_visible(False)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    left_out = f"; {len(masks) - len(shown)} more clients" if len(masks) > len(shown) else ""
    figure.suptitle(f"Modules (rows) that travelled, by round: blue is open{left_out}", fontsize=10)
    return figure
