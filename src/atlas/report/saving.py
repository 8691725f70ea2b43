"""Where pictures go: one file each, named after its cohort where there are several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from atlas.report.figures.drawing import DPI
from atlas.runs.folder import RunFolder


def save_figures(
    folder: RunFolder, figures: Mapping[str, Iterable[tuple[str, Figure]]]
) -> list[Path]:
    """Write pictures into a run's folder.

    Args:
        folder: The run.
        figures: By cohort, each with its name; drawn one at a time.

    Returns:
        The files.
    """
    suffixes = file_suffixes(list(figures))
    written = []
    for cohort, pictures in figures.items():
        for name, figure in pictures:
            if len(figures) > 1:
                figure.suptitle(cohort)
            folder.plots.mkdir(exist_ok=True)
            written.append(folder.plots / f"{name}{suffixes[cohort]}.png")
            figure.savefig(written[-1], dpi=DPI)
    return written


def file_suffixes(cohorts: list[str]) -> dict[str, str]:
    """What to add to file names: nothing for one cohort; no two are alike.

    A backbone can be named by a path, so only plain characters are kept.
    """
    if len(cohorts) == 1:
        return {cohorts[0]: ""}
    suffixes: dict[str, str] = {}
    for cohort in cohorts:
        plain = "-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", cohort)[-48:].strip("-.")
        while plain in suffixes.values():
            plain += "-other"
        suffixes[cohort] = plain
    return suffixes
