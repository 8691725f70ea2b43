"""Pictures of a memory run, drawn from its folder alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes

from atlas.report.figures.drawing import DPI, PALETTE, Events, new_figure, quiet
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder, read_summary

Points = dict[int, float]


def plot_memory(folder: RunFolder) -> None:
    """Draw accuracy, loss, gates and norms over steps into `plots/training.png`."""
    events: Events = read_events(folder.events)
    summary = read_summary(folder.summary)
    figure = new_figure(11, 7)
    (accuracy, loss), (gates, norms) = figure.subplots(2, 2)
    _draw(accuracy, accuracies(events), "accuracy of new sequences, %")
    chance = 100 * summary["chance"]
    accuracy.axhline(chance, color="#475569", linewidth=1, linestyle=":", label="chance")
    accuracy.set_ylim(-2, 102)
    _legend(accuracy)
    _draw(loss, losses(events), "training loss")
    loss.set_yscale("log")
    # Keys of a summary are sorted; the log has the arms in their own order.
    first = next(e["arms"][0] for e in events if e["event"] in ("started", "resumed"))
    _draw(gates, measured(events, first, ".mean"), f"gates of {first}, mean")
    _draw(norms, measured(events, first, "_norm"), f"norms of {first}")
    folder.plots.mkdir(exist_ok=True)
    figure.savefig(folder.plots / "training.png", dpi=DPI)


def accuracies(events: Events) -> dict[str, Points]:
    """Accuracy in percent by arm and step."""
    found: dict[str, Points] = {}
    for event in events:
        if event["event"] == "round_finished":
            for arm, value in event["accuracy"].items():
                found.setdefault(arm, {})[event["step"]] = 100 * value
    return found


def losses(events: Events) -> dict[str, Points]:
    """Training loss by arm and step, where it is a number."""
    found: dict[str, Points] = {}
    for event in _trained(events):
        if event["loss"] is not None:
            found.setdefault(event["arm"], {})[event["step"]] = event["loss"]
    return found


def measured(events: Events, arm: str, ending: str) -> dict[str, Points]:
    """What the memory of an arm did by measure and step: means over its layers."""
    found: dict[str, dict[int, list[float]]] = {}
    for event in _trained(events):
        if event["arm"] != arm:
            continue
        for name, value in (event["memory"] or {}).items():
            if name.endswith(ending) and value is not None:
                short = name.partition("/")[2].removesuffix(ending).removeprefix("gate.")
                found.setdefault(short, {}).setdefault(event["step"], []).append(value)
    return {
        name: {step: sum(values) / len(values) for step, values in points.items()}
        for name, points in found.items()
    }


def _trained(events: Events) -> Iterable[Mapping[str, Any]]:
    return (event for event in events if event["event"] == "trained")


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
