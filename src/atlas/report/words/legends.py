"""What columns mean, where their names do not say it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

RUN_LEGEND = (
    "scores in % of the task's own metric; majority: always the most frequent answer; alone: the "
    "same training without others; gain: federated minus alone, in points; up, down: bytes sent "
    "and received"
)
CHOICE_LEGEND = "; chance: any of the choices"
COMPARE_LEGEND = {
    "spread": "standard deviation of the mean over seeds",
    "worst": "lowest score of any client",
    "worst\ngain": "least gain of a client over training alone, in points",
    "MB": "sent and received by all clients together",
    "mix\nerror": "distance of mixtures from the exact ones, relative to those",
    "distance": "mean distance between mixed adapters of one cluster in the first round",
    "last": "the same in the last round",
    "p (t)": "paired t-test over seeds against the first arm",
    "p (W)": "Wilcoxon signed-rank test, likewise",
    "d": "Cohen's d: the difference from the first arm in standard deviations over seeds",
}
MEMORY_LEGEND = {
    "accuracy": "% of the test's answers that are right, mean over seeds",
    "spread": COMPARE_LEGEND["spread"],
    "worst": "the lowest of its seeds",
    "loss": "mean loss of the test's answers",
    "share": "the memory's share in the output of its layers",
    "own - emptied": "points that the memory of its own episode is ahead of an emptied one",
    "seconds": "of training",
    **{key: COMPARE_LEGEND[key] for key in ("p (t)", "p (W)", "d")},
}
SHARE_LEGEND = (
    "80.0 (186 ± 10 %): score, and share of the way from alone (0 %) to the ceiling (100 %)"
)
ERROR_LEGEND = ", ± its standard error over seeds"


CHANCE_LEGEND = "at chance: nothing beats the majority by more than 2 points"


def compare_legend(columns: Collection[str], cells: Collection[str]) -> Iterator[str]:
    """The lines below a study's tables.

    Args:
        columns: Those of the first table that hold anything.
        cells: Texts of the second, headers included.
    """
    yield from _meanings(COMPARE_LEGEND, columns)
    if any("%" in cell for cell in cells):
        yield SHARE_LEGEND + (ERROR_LEGEND if any("±" in cell for cell in cells) else "")
    if any("at chance" in cell for cell in cells):
        yield CHANCE_LEGEND


def memory_legend(columns: Collection[str]) -> Iterator[str]:
    """The lines below a study of memory runs, of those columns that hold anything."""
    yield from _meanings(MEMORY_LEGEND, columns)


def _meanings(legend: Mapping[str, str], columns: Collection[str]) -> Iterator[str]:
    """One line with the meanings of the columns there are; none for none."""
    known = {name: meaning for name, meaning in legend.items() if name in columns}
    kept = [f"{name.replace(chr(10), ' ')}: {meaning}" for name, meaning in known.items()]
    if kept:
        yield "; ".join(kept)
