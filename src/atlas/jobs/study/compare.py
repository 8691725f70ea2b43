"""Runs a study and draws up one table; the same command again goes on where it stopped."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atlas.config.grid import ARM, Combination
from atlas.config.load import RunConfig
from atlas.jobs.runner import Finished, resume_run, start_run
from atlas.jobs.study.cases import Study, folder_name, tell_alone
from atlas.jobs.study.memory_arms import FIGURES, draw_up_memory
from atlas.jobs.study.outcomes import RunOutcome, compare_tasks, mean_by_key, read_outcome
from atlas.jobs.study.rows import Row, against_first, csv_text, values_of
from atlas.ops.metrics import paired_comparison
from atlas.report.figures.study import plot_study
from atlas.report.html.page import write_report
from atlas.runs.events import Observe, Progress
from atlas.runs.folder import write_text_atomic

Announce = Callable[[int, int, Combination], None]


def run_study(
    study: Study,
    parent: Path,
    announce: Announce | None = None,
    watch: Observe | None = None,
    progress: Progress | None = None,
) -> dict[str, Any] | None:
    """Run what is not finished yet and draw up the table; None if stopped before the end.

    Every combination is an ordinary run folder under `parent/<study>/`; finished ones are read,
    stopped ones resumed. Results are also written there as `compare.json`, `compare.csv` and
    pictures.
    """
    folder = parent / study.name
    jobs, outcomes = study.jobs(), []
    for number, (case, config) in enumerate(jobs, start=1):
        if announce:
            announce(number, len(jobs), case.keys)
        finished = finish_run(config, folder / folder_name(case.keys), watch, progress)
        if finished.summary is None:
            return None
        outcomes.append(read_outcome(case, finished.folder, finished.summary))
        if finished.asked:
            return None
    done = len(study.configs)
    if study.federations:
        compared = tell_alone(outcomes[:done], study.federations)
        drawn = draw_up(compared, outcomes[done:])
        text = _csv(drawn["rows"], list(drawn["tasks"]))
    else:
        drawn = draw_up_memory(outcomes, study.models)
        text = csv_text(drawn["rows"], FIGURES)
    result = {"study": study.name} | drawn
    write_text_atomic(folder / "compare.json", json.dumps(result, indent=2, sort_keys=True) + "\n")
    write_text_atomic(folder / "compare.csv", text)
    plot_study(folder, result)
    if any(config.report for config in study.configs):
        write_report([folder])
    return result


def finish_run(
    config: RunConfig, place: Path, watch: Observe | None, progress: Progress | None
) -> Finished:
    """Read the run in a place if it is finished, resume it if it was stopped, or else start it."""
    runs = sorted(place.iterdir()) if place.is_dir() else []
    existing = [path for path in runs if (path / "config.yaml").is_file()]
    if existing:
        return resume_run(existing[0], watch, progress)
    return start_run(config, place, watch, progress)


def draw_up(outcomes: Sequence[RunOutcome], ceilings: Sequence[RunOutcome]) -> dict[str, Any]:
    """What the runs of a study and of its ceiling amount to, as plain values."""
    arms: dict[str, list[RunOutcome]] = {}
    for outcome in outcomes:
        arms.setdefault(outcome.arm, []).append(outcome)
    majorities = [statistics.fmean(o.summary["majority"]["clients"].values()) for o in outcomes]
    best = [outcome.summary["score"]["mean"] for outcome in ceilings]
    return {
        "rows": [_row(outcome) for outcome in outcomes],
        "majority": statistics.fmean(majorities),
        "ceiling": statistics.fmean(best) if best else None,
        "tasks": compare_tasks(arms, ceilings),
        "clients": {arm: _clients([o.summary for o in own]) for arm, own in arms.items()},
        "tests": compare_arms(arms),
        "alone": compare_alone(next(iter(arms.values()))),
    }


def _row(outcome: RunOutcome) -> Row:
    summary, case = outcome.summary, outcome.case
    row = {
        "arm": outcome.arm,
        "keys": values_of(case.keys),
        **{key: summary["score"][key] for key in ("mean", "spread", "worst")},
        "tasks": outcome.task_means("score"),
        "bytes": {key: summary["bytes"][key] for key in ("up", "down")},
        "seconds": summary["seconds"],
        "distance": outcome.distance,
        "error": outcome.error,
        "adapters_sha256": summary["adapters_sha256"],
    }
    if devices := outcome.device_means():
        row["devices"] = devices
    if ARM in case.columns:
        others = {key: text for key, text in case.columns.items() if key != ARM}
        row["columns"] = {ARM: case.columns[ARM], **values_of(others)}
    return row


def _clients(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One arm's clients averaged over seeds; gains over training alone where that was done."""
    scores = mean_by_key(summary["score"]["clients"] for summary in summaries)
    alone = mean_by_key(summary.get("alone", {}).get("clients", {}) for summary in summaries)
    gains = {client: scores[client] - alone[client] for client in alone}
    return {"score": scores, "gain": gains, "worst_gain": min(gains.values(), default=None)}


def compare_arms(arms: Mapping[str, Sequence[RunOutcome]]) -> list[dict[str, Any]]:
    """Every arm against the first, paired on the mean score of each seed."""
    means = {arm: [o.summary["score"]["mean"] for o in own] for arm, own in arms.items()}
    return against_first(means)


def compare_alone(first: Sequence[RunOutcome]) -> dict[str, Any] | None:
    """Training alone against the first arm, whose clients' shadows it is; None without shadows."""
    found = [o.summary["alone"]["clients"] for o in first if "alone" in o.summary]
    solo = [statistics.fmean(clients.values()) for clients in found]
    if len(solo) < len(first):
        return None
    means = [outcome.summary["score"]["mean"] for outcome in first]
    return {"mean": statistics.fmean(solo)} | paired_comparison(means, solo)


def _csv(rows: Sequence[Row], tasks: Sequence[str]) -> str:
    columns = ["mean", "spread", "worst", *(f"task:{task}" for task in tasks)]
    columns += ["up", "down", "seconds", "error", "adapters_sha256"]
    lines = []
    for row in rows:
        scores = {f"task:{task}": score for task, score in row["tasks"].items()}
        lines.append({**row, **scores, **row["bytes"]})
    return csv_text(lines, columns)
