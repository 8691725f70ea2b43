"""Pictures of a memory run, drawn from its folder alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atlas.report.colours import PHASES
from atlas.report.figures.drawing import DPI, PALETTE, Events, new_figure, quiet
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
    if measured(events, first, ".mean"):
        pictures["memory"] = plot_layers(events, first)
    if "phases" in summary:
        pictures["sums"] = plot_sums(events, summary, first)
    folder.plots.mkdir(exist_ok=True)
    for name, figure in pictures.items():
        figure.savefig(folder.plots / f"{name}.png", dpi=DPI)


def plot_training(events: Events, summary: Mapping[str, Any]) -> Figure:
    """Right answers and losses of all arms over steps."""
    episodes = summary.get("objective") == "episodes"
    figure = new_figure(11, 7 if episodes else 4)
    grid = figure.subplots(2 if episodes else 1, 2, squeeze=False)
    title = "masked words right, %" if episodes else "accuracy of new sequences, %"
    _draw(grid[0][0], accuracies(events), title)
    chance = 100 * summary["chance"]
    grid[0][0].axhline(chance, color=GREY, linewidth=1, linestyle=":", label="chance")
    grid[0][0].set_ylim(bottom=0)
    _legend(grid[0][0])
    _draw(grid[0][1], losses(events), "training loss")
    if not episodes:
        grid[0][1].set_yscale("log")
    else:
        _draw(grid[1][0], losses(events, "storage_loss"), "storage: loss of the next token")
        _draw(grid[1][1], losses(events, "retrieval_loss"), "retrieval: loss at masks")
    return figure


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
    floor = {e["step"]: e["gate_floor"] for e in _trained(events, arm) if "gate_floor" in e}
    if floor:
        steps, heights = list(floor), list(floor.values())
        share.step(steps, heights, color=GREY, linestyle="--", where="post", label="floor")
    share.set_ylim(0, 1)
    _legend(share)
    others = measured(events, arm, ".mean")
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
        points = accuracies(events, name).get(arm)
        if points:
            lines[words] = points
    _draw(known, lines, f"arm {arm}: sums right, %")
    known.set_ylim(-2, 102)
    figures = {"concentration": "fourier_concentration", "circle, R squared": "circular_fit"}
    shares = {
        words: {e["step"]: e[name] for e in _trained(events, arm) if e.get(name) is not None}
        for words, name in figures.items()
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


def accuracies(events: Events, figure: str = "accuracy") -> dict[str, Points]:
    """A share of right answers in percent by arm and step."""
    found: dict[str, Points] = {}
    for event in events:
        if event["event"] == "round_finished":
            for arm, value in event.get(figure, {}).items():
                found.setdefault(arm, {})[event["step"]] = 100 * value
    return found


def losses(events: Events, name: str = "loss") -> dict[str, Points]:
    """A loss of training by arm and step, where it is a number."""
    found: dict[str, Points] = {}
    for event in _trained(events):
        if event.get(name) is not None:
            found.setdefault(event["arm"], {})[event["step"]] = event[name]
    return found


def by_layer(events: Events, arm: str, measure: str) -> dict[str, Points]:
    """One measure of an arm's memory by layer and step."""
    found: dict[str, Points] = {}
    for event in _trained(events, arm):
        for name, value in (event["memory"] or {}).items():
            layer, _, what = name.partition("/")
            if what == measure and value is not None:
                found.setdefault(layer.replace("layers.", "layer "), {})[event["step"]] = value
    return found


def measured(events: Events, arm: str, ending: str) -> dict[str, Points]:
    """What the memory of an arm did by measure and step: means over its layers."""
    found: dict[str, dict[int, list[float]]] = {}
    for event in _trained(events, arm):
        for name, value in (event["memory"] or {}).items():
            if name.endswith(ending) and value is not None:
                short = name.partition("/")[2].removesuffix(ending).removeprefix("gate.")
                found.setdefault(short, {}).setdefault(event["step"], []).append(value)
    return {
        name: {step: sum(values) / len(values) for step, values in points.items()}
        for name, points in found.items()
    }


def _trained(events: Events, arm: str | None = None) -> Iterable[Mapping[str, Any]]:
    return (e for e in events if e["event"] == "trained" and arm in (None, e["arm"]))


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
