"""Where in their ranks clients hold what they learned, over the rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atlas.report.figures.drawing import PALETTE, new_figure, quiet, save_figures
from atlas.report.read.energy import EnergyGroup, energy_groups, read_energy
from atlas.report.words.english import counted
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder, read_summary

MOST_PANELS = 4
"""Largest ranks that get a panel, from the top."""


def plot_energy(folder: RunFolder) -> list[Path]:
    """Draw energy by rank band of cohorts with unequal ranks; nothing for other runs."""
    told = read_energy(read_events(folder.events))
    ranks = read_summary(folder.summary)["ranks"] if told else {}
    return save_figures(folder, {name: energy_figures(told[name], ranks) for name in told})


def energy_figures(
    mixed: Sequence[Mapping[str, Any]], ranks: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, Figure]]:
    """The one picture of a cohort."""
    groups = energy_groups(mixed, ranks)[:MOST_PANELS]
    if groups:
        yield "energy", energy_figure(groups)


LEAST = 1e-4
"""Shares below this, in percent, are drawn at it."""


def energy_figure(groups: Sequence[EnergyGroup]) -> Figure:
    """A panel for the clients of each largest rank: the mean share of energy beyond each band."""
    figure = new_figure(3.1 * len(groups) + 1.2, 3.4)
    panels = np.atleast_1d(figure.subplots(1, len(groups), sharey=True))
    for axes, group in zip(panels, groups, strict=True):
        for number, (edge, rounds) in enumerate(group.beyond.items()):
            shares = [max(100 * share, LEAST) for share in rounds.values()]
            ink = PALETTE[number % len(PALETTE)]
            axes.plot(
                list(rounds), shares, color=ink, label=f"beyond rank {edge}", marker="o", ms=3
            )
        title = f"Rank {group.rank}, {counted(len(group.clients), 'client')}"
        axes.set_title(title, fontsize=10)
        axes.set(xlabel="round", yscale="log", ylim=(LEAST, 150))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        quiet(axes)
    panels[0].set_ylabel("share of energy, as trained, %")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure
