"""Where in their ranks clients hold what they learned, over the rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atlas.report.figures.drawing import PALETTE, Events, new_figure, quiet, save_figures
from atlas.report.words.english import counted
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder, read_summary

MOST_PANELS = 4
"""Largest ranks that get a panel, from the top."""


def plot_energy(folder: RunFolder) -> list[Path]:
    """Draw energy by rank band of cohorts with unequal ranks; nothing for other runs."""
    events, ranks = read_events(folder.events), read_summary(folder.summary)["ranks"]
    told = [event for event in events if event["event"] == "mixed" and event.get("energy")]
    cohorts = sorted({str(event["cohort"]) for event in told})
    return save_figures(folder, {name: energy_figures(told, name, ranks) for name in cohorts})


def energy_figures(
    events: Events, cohort: str, ranks: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, Figure]]:
    """The one picture of a cohort."""
    rounds = {event["round"]: event for event in events if event["cohort"] == cohort}
    yield "energy", energy_figure([rounds[number] for number in sorted(rounds)], ranks)


LEAST = 1e-4
"""Shares below this, in percent, are drawn at it."""


def energy_figure(mixed: Sequence[Mapping[str, Any]], ranks: Mapping[str, Sequence[int]]) -> Figure:
    """A panel for the clients of each largest rank: the mean share of energy beyond each band.

    Args:
        mixed: A cohort's `mixed` events, in order.
        ranks: Of every client.
    """
    clients, edges = mixed[-1]["clients"], mixed[-1]["energy"]["bands"]
    groups: dict[int, list[int]] = {}
    for place, client in enumerate(clients):
        groups.setdefault(max(ranks.get(client, edges)), []).append(place)
    shown = [rank for rank in sorted(groups, reverse=True) if rank > edges[0]][:MOST_PANELS]
    figure = new_figure(3.1 * len(shown) + 1.2, 3.4)
    panels = np.atleast_1d(figure.subplots(1, len(shown), sharey=True))
    numbers = [event["round"] for event in mixed]
    for axes, rank in zip(panels, shown, strict=True):
        shares = [np.mean([e["energy"]["trained"][k] for k in groups[rank]], 0) for e in mixed]
        beyond = 100 * (1 - np.cumsum(np.array(shares), axis=1)).clip(LEAST / 100)
        for number, edge in enumerate(edges[:-1]):
            ink, own = PALETTE[number % len(PALETTE)], beyond[:, number]
            if edge < rank:
                axes.plot(numbers, own, color=ink, label=f"beyond rank {edge}", marker="o", ms=3)
        axes.set_title(f"Rank {rank}, {counted(len(groups[rank]), 'client')}", fontsize=10)
        axes.set(xlabel="round", yscale="log", ylim=(LEAST, 150))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        quiet(axes)
    panels[0].set_ylabel("share of energy, as trained, %")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure
