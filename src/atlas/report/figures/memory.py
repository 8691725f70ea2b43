"""Pictures of a memory run, drawn from its folder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atlas.report.colours import PHASES
from atlas.report.figures.drawing import (
    DPI,
    PALETTE,
    Events,
    least_span,
    log_if_wide,
    new_figure,
    quiet,
)
from atlas.report.read.series import by_arm, by_layer, floors, layer_means, trained
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder, read_summary

Points = dict[int, float]
GREY = "#475569"
SUMS = {
    "lookup_accuracy": "looked up in the memory",
    "math_train_accuracy": "trained on, memory empty",
    "math_accuracy": "held out, memory empty",
}
"""Figures of sums, and what the pictures call them."""


def plot_memory(folder: RunFolder) -> None:
    """Draw `training.png`, `memory.png` and, where there are sums, `sums.png` into `plots/`."""
    events: Events = read_events(folder.events)
    summary = read_summary(folder.summary)
    # Keys of a summary are sorted; the log has the arms in their own order.
    first = next(e["arms"][0] for e in events if e["event"] in ("started", "resumed"))
    pictures = {"training": plot_training(events, summary)}
    if layer_means(events, first, ".mean"):
        pictures["memory"] = plot_layers(events, first)
    if "phases" in summary:
        pictures["sums"] = plot_sums(events, summary, first)
    folder.plots.mkdir(exist_ok=True)
    for name, figure in pictures.items():
        figure.savefig(folder.plots / f"{name}.png", dpi=DPI)


def plot_training(events: Events, summary: Mapping[str, Any]) -> Figure:
    """Right answers, losses in training and validation, and what else rounds tell of all arms."""
    episodes = summary.get("objective") == "episodes"
    title = "masked words right, %" if episodes else "accuracy of new sequences, %"
    panels: list[tuple[str, dict[str, Points]]] = [
        ("training loss", trained(events, "loss")),
        ("validation loss", by_arm(events, "round_finished", "loss")),
        ("bits per byte", by_arm(events, "round_finished", "bits_per_byte")),
        ("storage: loss of the next token", trained(events, "storage_loss")),
        ("retrieval: loss at masks", trained(events, "retrieval_loss")),
        ("the memory's share in the output, and its floor", _shares(events)),
    ]
    shown = [(name, lines) for name, lines in panels if lines]
    rows = -(-(1 + len(shown)) // 2)
    figure = new_figure(11, 0.6 + 3.3 * rows)
    grid = figure.subplots(rows, 2, squeeze=False).flatten().tolist()
    _draw(grid[0], by_arm(events, "round_finished", "accuracy", 100), title)
    chance = 100 * summary["chance"]
    grid[0].axhline(chance, color=GREY, linewidth=1, linestyle=":", label="chance")
    least_span(grid[0])
    _legend(grid[0])
    for axes, (name, lines) in zip(grid[1:], shown, strict=False):
        _draw(axes, lines, name)
        log_if_wide(axes, (value for points in lines.values() for value in points.values()))
    for axes in grid[1 + len(shown) :]:
        axes.set_visible(False)
    return figure


def _shares(events: Events) -> dict[str, Points]:
    """Share of the first arm's memory, mean over layers, and the least that it may be."""
    arm = next((e["arms"][0] for e in events if e["event"] in ("started", "resumed")), "")
    share = layer_means(events, arm, ".mean").get("mix")
    return {"share": share, "floor": floors(events, arm)} if share else {}


def plot_layers(events: Events, arm: str) -> Figure:
    """The memory's share in every layer with its floor, the other gates, norms and entries."""
    figure = new_figure(11, 7)
    (share, gates), (norms, entries) = figure.subplots(2, 2)
    layers = by_layer(events, arm, "gate.mix.mean")
    _draw(share, layers, f"arm {arm}: the memory's share in the output")
    stored = by_layer(events, arm, "gate.mix.storage.mean")
    for place, (layer, points) in enumerate(stored.items()):
        colour, label = PALETTE[place % len(PALETTE)], f"{layer} in storage"
        share.plot(list(points), list(points.values()), color=colour, alpha=0.4, label=label)
    floor = floors(events, arm)
    if floor:
        steps, heights = list(floor), list(floor.values())
        share.step(steps, heights, color=GREY, linestyle="--", where="post", label="floor")
    share.set_ylim(0, 1)
    _legend(share)
    others = layer_means(events, arm, ".mean")
    others.pop("mix", None)
    others.pop("mix.storage", None)
    _draw(gates, others, "other gates, mean over layers")
    lines = {
        f"{letter} of {layer}": points
        for letter in ("M", "S")
        for layer, points in by_layer(events, arm, f"{letter}_norm").items()
    }
    _draw(norms, lines, "norms of memory M and momentum S")
    sizes = {
        f"{name} of {layer}": points
        for name, measure in (("largest", "M_max"), ("spread", "M_std"))
        for layer, points in by_layer(events, arm, measure).items()
    }
    _draw(entries, sizes, "entries of M")
    return figure


def plot_sums(events: Events, summary: Mapping[str, Any], arm: str) -> Figure:
    """What is known of sums over steps, and how far residues are waves; phases in the ground."""
    figure = new_figure(11, 4)
    known, waves = figure.subplots(1, 2)
    lines = {}
    for name, words in SUMS.items():
        points = by_arm(events, "round_finished", name, 100).get(arm)
        if points:
            lines[words] = points
    _draw(known, lines, f"arm {arm}: sums right, %")
    least_span(known)
    figures = {"concentration": "fourier_concentration", "circle, R squared": "circular_fit"}
    shares = {
        words: points
        for words, name in figures.items()
        if (points := trained(events, name).get(arm))
    }
    _draw(waves, shares, "waves in the embedding of residues")
    waves.set_ylim(0, 1)
    for axes in (known, waves):
        _bands(axes, summary["phases"], summary["steps"])
    _legend(known)
    _legend(waves)
    return figure


def _bands(axes: Axes, phases: Sequence[Mapping[str, Any]], steps: int) -> None:
    """Every phase as a colour behind the lines, from its first step to the next one's."""
    ends = [phase["step"] for phase in phases[1:]] + [steps]
    named = set[str]()
    for phase, end in zip(phases, ends, strict=True):
        name = phase["name"]
        label = None if name in named else f"phase: {name}"
        axes.axvspan(phase["step"], end, color=PHASES[name][0], zorder=0, label=label)
        named.add(name)


def _draw(axes: Axes, lines: dict[str, Points], title: str) -> None:
    """One line each, with the step below."""
    for place, (name, points) in enumerate(lines.items()):
        colour = PALETTE[place % len(PALETTE)]
        axes.plot(list(points), list(points.values()), color=colour, label=name)
    axes.set(xlabel="step", title=title)
    quiet(axes)
    if lines:
        _legend(axes)


def _legend(axes: Axes) -> None:
    # Beside the picture: lines may run anywhere in it.
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
