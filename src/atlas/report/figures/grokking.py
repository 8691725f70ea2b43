"""Pictures of a grokking run, drawn from its folder alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from atlas.report.colours import PHASES
from atlas.report.figures.drawing import DPI, PALETTE, Events, new_figure, quiet
from atlas.report.read.phases import Points, phase_spans
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder, read_summary

SMALLEST = 1e-9
"""Losses below are drawn there, so that the axis shows what matters."""


def plot_grokking(folder: RunFolder) -> None:
    """Draw `learning.png`, `spectrum.png`, `circle.png` and `waves.png` into `plots/`."""
    events: Events = read_events(folder.events)
    summary = read_summary(folder.summary)
    arms = sorted(summary["arms"], key=lambda arm: arm == "control")
    measured = {arm: _measured(events, arm) for arm in arms}
    tested = {e["arm"]: e for e in events if e["event"] == "tested"}
    pictures = {
        "learning": plot_learning(measured, summary),
        "spectrum": plot_spectra(measured, summary),
        "circle": plot_circles({arm: tested[arm]["circles"] for arm in arms}, summary),
        "waves": plot_waves(measured, summary),
    }
    folder.plots.mkdir(exist_ok=True)
    for name, figure in pictures.items():
        figure.savefig(folder.plots / f"{name}.png", dpi=DPI)


def _measured(events: Events, arm: str) -> Points:
    return [e for e in events if e["event"] == "measured" and e["arm"] == arm]


def plot_learning(measured: Mapping[str, Points], summary: Mapping[str, Any]) -> Figure:
    """Accuracy and loss of pairs learned from and held out, a column per arm."""
    figure = new_figure(1 + 5 * len(measured), 7)
    grid = figure.subplots(2, len(measured), sharex=True, sharey="row", squeeze=False)
    for column, (arm, points) in enumerate(measured.items()):
        accuracy, loss = grid[0][column], grid[1][column]
        _bands(accuracy, points)
        _bands(loss, points)
        for place, (part, name) in enumerate(PARTS.items()):
            colour = PALETTE[place]
            _line(accuracy, points, f"{part}_accuracy", name, colour, scale=100)
            _line(loss, points, f"{part}_loss", name, colour, least=SMALLEST)
        accuracy.set(title=f"{arm}: right answers, %", ylim=(-3, 103))
        loss.set(title=f"{arm}: loss", xlabel="step", yscale="log")
        jump = summary["arms"][arm]["jump"]
        if jump is not None:
            accuracy.axvline(jump["step"], color="#334155", linestyle=":", linewidth=1.2)
            _beside(accuracy, jump["step"], 50, f"jump at step {jump['step']}", points)
        quiet(accuracy)
        quiet(loss)
    figure.suptitle(f"{summary['task']}: learning by heart, and understanding")
    _legend(figure, grid[0][0], _phases(measured))
    return figure


PARTS = {"train": "pairs learned from", "test": "held-out pairs"}


def plot_spectra(measured: Mapping[str, Points], summary: Mapping[str, Any]) -> Figure:
    """Share of every frequency in the neurons over steps: a row per operation, a column per arm."""
    operations = list(next(iter(measured.values()))[0]["spectra"]) if _any(measured) else []
    rows = max(1, len(operations))
    figure = new_figure(1 + 5 * len(measured), 1 + 3.2 * rows)
    grid = figure.subplots(rows, len(measured), squeeze=False, sharex=True)
    for row, operation in enumerate(operations):
        tables = {
            arm: np.array([point["spectra"][operation] for point in points]).T
            for arm, points in measured.items()
        }
        table = next(iter(tables.values()))
        # Not below three even shares: what is nearly even must look so.
        top = 100 * max(3 / len(table), *(float(table.max()) for table in tables.values()))
        for column, (arm, points) in enumerate(measured.items()):
            axes = grid[row][column]
            steps = [point["step"] for point in points]
            half = (steps[-1] - steps[0]) / max(1, len(steps) - 1) / 2
            image = axes.imshow(
                100 * tables[arm],
                aspect="auto",
                origin="lower",
                cmap="magma_r",
                vmin=0,
                vmax=top,
                interpolation="nearest",
                extent=(steps[0] - half, steps[-1] + half, 0.5, len(tables[arm]) + 0.5),
            )
            axes.set_title(f"{arm}: {operation}")
            axes.set_ylabel("frequency over " + ORDERS.get(operation, "residues"))
            if row == rows - 1:
                axes.set_xlabel("step")
        figure.colorbar(image, ax=list(grid[row]), label="share of the power, %")
    figure.suptitle("Which waves the neurons are made of: darker is stronger")
    return figure


ORDERS = {"multiply": "logarithms", "divide": "logarithms"}
"""What waves of an operation run over, where it is not the residues themselves."""


def plot_circles(circles: Mapping[str, Mapping[str, Any]], summary: Mapping[str, Any]) -> Figure:
    """Every residue in the plane of the embedding's strongest frequency, at the end."""
    operations = list(next(iter(circles.values())))
    figure = new_figure(1 + 4.4 * len(circles), 0.8 + 4.2 * len(operations))
    grid = figure.subplots(len(operations), len(circles), squeeze=False)
    for row, operation in enumerate(operations):
        for column, (arm, found) in enumerate(circles.items()):
            _circle(grid[row][column], found[operation], f"{arm}: {operation}", operation)
    figure.suptitle("The embedding in the plane of its strongest wave, at the end")
    return figure


def _circle(axes: Axes, found: Mapping[str, Any], title: str, operation: str) -> None:
    points = np.array(found["points"])
    places = np.arange(len(points)) * found["frequency"] % len(points)
    image = axes.scatter(points[:, 0], points[:, 1], c=places, cmap="twilight", s=26, zorder=2)
    reach = 1.18 * float(np.abs(points).max())
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
    for residue, (x, y) in list(zip(found["residues"], points, strict=True))[::8]:
        away = 1 + 0.09 * reach / max(math.hypot(x, y), 1e-9)
        axes.text(x * away, y * away, str(residue), ha="center", va="center", fontsize=7)
    axes.spines[:].set_visible(False)
    share = f"{100 * found['r_squared']:.0f} % of the embedding"
    axes.set_title(f"{title}\nfrequency {found['frequency']}, {share}", fontsize=10)
    over = "logarithm" if operation in ORDERS else "residue"
    figure = axes.figure
    bar = figure.colorbar(image, ax=axes, shrink=0.6, ticks=[])
    bar.set_label(f"{over} times frequency, once round", fontsize=8)


def plot_waves(measured: Mapping[str, Points], summary: Mapping[str, Any]) -> Figure:
    """Excluded and restricted loss, concentration and weight norm, a column per arm."""
    figure = new_figure(1 + 5 * len(measured), 9)
    grid = figure.subplots(3, len(measured), sharex=True, sharey="row", squeeze=False)
    for column, (arm, points) in enumerate(measured.items()):
        losses, waves, weights = (grid[row][column] for row in range(3))
        for axes, (title, lines) in zip((losses, waves, weights), MEASURES.items(), strict=True):
            _bands(axes, points)
            for place, (key, name) in enumerate(lines.items()):
                _line(axes, points, key, name, PALETTE[place])
            axes.set_title(f"{arm}: {title}")
            quiet(axes)
        weights.set_xlabel("step")
    grid[0][0].set_ylim(bottom=0)  # the axes of a row are one, and are scaled by all its lines
    grid[1][0].set_ylim(-0.03, 1.03)
    for row in range(3):
        grid[row][-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    figure.suptitle(f"{summary['task']}: what the answers owe to the key waves")
    _bands_legend(figure, _phases(measured))
    return figure


MEASURES = {
    "loss by waves": {
        "excluded_loss": "learned pairs without\nthe key waves (excluded)",
        "restricted_loss": "all pairs from the key\nwaves alone (restricted)",
        "train_loss": "learned pairs",
    },
    "how far it is waves": {
        "fourier_concentration": "neurons: share of\ntheir strongest wave",
        "embedding_concentration": "embedding: share of\nthe five strongest",
        "circular_fit": "embedding: share of\none circle (R squared)",
    },
    "norm of the weights": {"weight_norm": "norm of all weights"},
}


def _any(measured: Mapping[str, Points]) -> bool:
    return all(len(points) > 0 for points in measured.values())


def _line(  # noqa: PLR0913
    axes: Axes,
    points: Points,
    key: str,
    name: str,
    colour: str,
    *,
    scale: float = 1.0,
    least: float = -math.inf,
) -> None:
    """One measure over steps, where it is a number."""
    known = [(p["step"], max(least, scale * p[key])) for p in points if p[key] is not None]
    axes.plot([s for s, _ in known], [v for _, v in known], color=colour, label=name, zorder=3)


def _bands(axes: Axes, points: Points) -> None:
    """The phases as colours behind the lines."""
    for start, end, phase in phase_spans(points):
        axes.axvspan(start, end, color=PHASES[phase][0], linewidth=0, zorder=0)


def _phases(measured: Mapping[str, Points]) -> set[str]:
    return {phase for points in measured.values() for _, _, phase in phase_spans(points)}


def _beside(axes: Axes, step: int, height: float, text: str, points: Points) -> None:
    """Words on the emptier side of a line."""
    left = step > points[-1]["step"] / 2
    axes.annotate(
        text,
        (step, height),
        xytext=(-5 if left else 5, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=8,
        color="#334155",
    )


def _legend(figure: Figure, axes: Axes, phases: Collection[str]) -> None:
    """Lines and phases, below everything: nothing is hidden."""
    handles, names = axes.get_legend_handles_labels()
    _bands_legend(figure, phases, handles, names)


def _bands_legend(
    figure: Figure,
    phases: Collection[str],
    handles: Sequence[Any] = (),
    names: Sequence[str] = (),
) -> None:
    patches = [
        Patch(color=colour, label=f"phase: {phase}")
        for phase, (colour, _) in PHASES.items()
        if phase in phases
    ]
    labels = [*names, *(str(patch.get_label()) for patch in patches)]
    figure.legend(
        [*handles, *patches], labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
