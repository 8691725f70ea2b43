"""What runs of several models amount to in a study: the accuracy of each model, arm by arm.

A memory run trains several models on the same sequences (its `arms`: memory, window, detached), a
grokking run a network and its control; there, accuracy and loss are those of held-out pairs.
Each of them is a line of the table, so that one run already compares a memory with none, and seeds
or settings are compared within each model as well.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from atlas.config.grid import ARM
from atlas.jobs.study.outcomes import CHANCE, RunOutcome
from atlas.jobs.study.rows import Row, against_first, values_of

MODEL = "model"
"""The column that says which of a run's models a line is about."""
FIGURES = ("mean", "loss", "share", "retrieval", "parameters", "seconds", "weights_sha256")
"""Columns of compare.csv beside what is compared."""


def draw_up_memory(
    outcomes: Sequence[RunOutcome], models: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """The table of a study of memory runs, as plain values.

    Args:
        outcomes: The runs.
        models: The arms of each, the first of which the summary's own figures are of.
    """
    pairs = zip(outcomes, models, strict=True)
    rows = [row for outcome, named in pairs for row in _rows(outcome, named)]
    # Lines of one model stand together, in the order in which runs and models were named.
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    rows.sort(key=lambda row: arms.index(row["arm"]))
    means = {arm: [row["mean"] for row in rows if row["arm"] == arm] for arm in arms}
    tasks = {task: _task(task, outcomes, rows) for task in _tasks(outcomes)}
    return {
        "kind": "memory",
        "rows": rows,
        "majority": statistics.fmean(outcome.summary["chance"] for outcome in outcomes),
        "ceiling": None,
        "tasks": tasks,
        "clients": {},
        "tests": against_first(means),
        "alone": None,
    }


def _rows(outcome: RunOutcome, models: Sequence[str]) -> list[Row]:
    """One line for each model of a run."""
    summary, case = outcome.summary, outcome.case
    rows = []
    for model in models:
        found, first = summary["arms"][model], model == models[0]
        right = summary["accuracy"][model]
        named = {} if len(models) == 1 else {MODEL: model}
        words = [text if k == ARM else f"{k}={text}" for k, text in (case.columns | named).items()]
        # What a summary tells of gates and retrieval is of its first model.
        told = {"gates": {}, "retrieval": None} | (summary if first else {}) | found
        row: Row = {
            "arm": " ".join(words) or model,
            "keys": values_of(case.keys) | named,
            "mean": right,
            "worst": right,
            "tasks": {summary["task"]: right},
            "loss": found["loss"] if "loss" in found else found["test_loss"],
            "share": told["gates"].get("mean"),
            "retrieval": _retrieval(told["retrieval"]),
            "parameters": found["parameters"],
            "seconds": found["seconds"],
            "weights_sha256": found["weights_sha256"],
        }
        if ARM in case.columns:
            others = {key: text for key, text in case.columns.items() if key != ARM}
            row["columns"] = {ARM: case.columns[ARM], **values_of(others), **named}
        rows.append(row)
    return rows


def _retrieval(found: Mapping[str, Any] | None) -> float | None:
    """Accuracy with the memory of its own episode, less that with an emptied one, where asked."""
    return None if not found else found["own"] - found["emptied"]


def _tasks(outcomes: Sequence[RunOutcome]) -> list[str]:
    return sorted({outcome.summary["task"] for outcome in outcomes})


def _task(task: str, outcomes: Sequence[RunOutcome], rows: Sequence[Row]) -> dict[str, Any]:
    """One task by itself: chance, and every arm's mean over seeds."""
    chance = statistics.fmean(o.summary["chance"] for o in outcomes if o.summary["task"] == task)
    own: dict[str, list[float]] = {}
    for row in rows:
        if task in row["tasks"]:
            own.setdefault(row["arm"], []).append(row["mean"])
    means = {arm: statistics.fmean(values) for arm, values in own.items()}
    return {
        "metric": "accuracy",
        "majority": chance,
        "ceiling": None,
        "alone": None,
        "arms": means,
        "recovered": None,
        "recovered_error": None,
        "at_chance": round(max(means.values()) - chance, 9) <= CHANCE,
    }
