"""Legends in sections, beside the points and never over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from atlas.report.read.cohorts import MOST_LISTED, colour

GREY = "#475569"
Row = tuple[str, str, str]
"""Words, marker and its colour."""


def cluster_rows(names: Mapping[int, str]) -> list[Row]:
    """Clusters by colour; of many the first, and how many more there are."""
    rows = [(names[label], "o", colour(label)) for label in list(names)[:MOST_LISTED]]
    more = len(names) - MOST_LISTED
    return [*rows, (f"{more} more", "", "none")] if more > 0 else rows


def marker_rows(markers: Mapping[str, str]) -> list[Row]:
    """What each marker stands for."""
    return [(name, shape, GREY) for name, shape in markers.items()]


def write_legend(figure: Figure, sections: Mapping[str, Sequence[Row]]) -> None:
    """Sections with rows, each under its name; nothing if there are none."""
    rows: list[Row] = []
    heads = []
    for head, own in sections.items():
        if own:
            heads.append(len(rows))
            rows += [(head, "", "none"), *own]
    if not rows:
        return
    keys = [
        Line2D([], [], linestyle="none", marker=marker, color=fill, markersize=7)
        for _, marker, fill in rows
    ]
    legend = figure.legend(
        keys,
        [words for words, _, _ in rows],
        loc="outside right upper",
        frameon=False,
        fontsize=8.5,
        handletextpad=0.2,
    )
    for place in heads:
        legend.get_texts()[place].set_fontweight("bold")
