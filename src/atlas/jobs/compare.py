"""All combinations of comma values, one table; the same command again goes on where it stopped."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.config.grid import Combination, expand
from atlas.config.load import dump_config, load_config
from atlas.config.models import FederationConfig
from atlas.config.overrides import parse_override
from atlas.engines.local import Progress
from atlas.federation.strategy import find_strategy
from atlas.jobs.run import Finished, Watch, resume_run, start_run
from atlas.jobs.show import describe_run
from atlas.ops.statistics import paired_comparison
from atlas.report.sweeps import plot_study
from atlas.runs.folder import write_text_atomic

CEILING = "pooled"
CHANCE = 0.02
"""Where the best beats the majority by no more than this, methods differ by luck alone."""
Announce = Callable[[int, int, Combination], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """What is compared: the settings of every combination, and the ceiling of each seed."""

    name: str
    combinations: tuple[Combination, ...]
    configs: tuple[FederationConfig, ...]
    ceilings: dict[int, FederationConfig]


@dataclass(frozen=True)
class Outcome:
    """A finished run: what was compared in it, its summary, and the task of every client."""

    combination: Combination
    summary: dict[str, Any]
    tasks: Mapping[str, str]

    @property
    def arm(self) -> str:
        """What is compared, whatever the seed."""
        return " ".join(f"{k}={v}" for k, v in self.combination.items() if k != "seed") or "all"

    def task_means(self, part: str) -> dict[str, float]:
        """The clients' `score` or `majority`, averaged task by task."""
        return _means({self.task_of(c): v} for c, v in self.summary[part]["clients"].items())

    def task_of(self, client: str) -> str:
        """A client's task; its own name stands in where the run's events are lost."""
        return self.tasks.get(client, client)


def plan_study(source: str, overrides: Sequence[str], *, ceiling: bool = True) -> Study:
    """Resolve every combination before anything runs, so that a bad value costs nothing."""
    fixed, combinations = expand(overrides)
    configs = []
    for combination in combinations:
        texts = [f"{key}={value}" for key, value in combination.items()]
        configs.append(load_config(source, [*fixed, *texts]))
        find_strategy(configs[-1].strategy)
    pools = any(config.strategy == CEILING for config in configs)
    ceilings = {} if pools or not ceiling else {c.seed: _ceiling(c) for c in reversed(configs)}
    text = json.dumps([dump_config(config) for config in (*configs, *ceilings.values())])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = f"{configs[0].name[:40]}-compare-{digest}"
    return Study(name, tuple(combinations), tuple(configs), ceilings)


def _ceiling(config: FederationConfig) -> FederationConfig:
    return config.model_copy(update={"strategy": CEILING, "keep_best": None, "alone": False})


def run_study(
    study: Study,
    parent: Path,
    announce: Announce | None = None,
    watch: Watch | None = None,
    progress: Progress | None = None,
) -> dict[str, Any] | None:
    """Run what is not finished yet and draw up the table; None if stopped before the end.

    Every combination is an ordinary run folder under `parent/<study>/`; finished ones are read,
    stopped ones resumed. Results are also written there as `compare.json`, `compare.csv` and
    pictures.
    """
    folder = parent / study.name
    jobs = list(zip(study.combinations, study.configs, strict=True))
    jobs += [({"strategy": CEILING, "seed": str(s)}, c) for s, c in study.ceilings.items()]
    outcomes = []
    for number, (combination, config) in enumerate(jobs, start=1):
        if announce:
            announce(number, len(jobs), combination)
        finished = _finish_run(config, folder / _slug(combination), watch, progress)
        if finished.summary is None:
            return None
        tasks = describe_run(finished.folder)["tasks"]
        outcomes.append(Outcome(combination, finished.summary, tasks))
    done = len(study.configs)
    result = {"study": study.name} | draw_up(outcomes[:done], outcomes[done:])
    write_text_atomic(folder / "compare.json", json.dumps(result, indent=2, sort_keys=True) + "\n")
    write_text_atomic(folder / "compare.csv", _csv(result["rows"], list(result["tasks"])))
    plot_study(folder, result)
    return result


def _slug(combination: Combination) -> str:
    """A folder name for a combination: readable, and distinct by its hash."""
    text = json.dumps(combination)
    words = re.sub(r"[^A-Za-z0-9_]+", "-", " ".join(combination.values())).strip("-")
    return f"{words[:40]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _finish_run(
    config: FederationConfig, place: Path, watch: Watch | None, progress: Progress | None
) -> Finished:
    runs = sorted(place.iterdir()) if place.is_dir() else []
    existing = [path for path in runs if (path / "config.yaml").is_file()]
    if existing:
        return resume_run(existing[0], watch, progress)
    return start_run(config, place, watch, progress)


def draw_up(outcomes: Sequence[Outcome], ceilings: Sequence[Outcome]) -> dict[str, Any]:
    """What the runs of a study and of its ceiling amount to, as plain values."""
    arms: dict[str, list[Outcome]] = {}
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
    }


def _row(outcome: Outcome) -> Row:
    summary, texts = outcome.summary, outcome.combination.items()
    return {
        "arm": outcome.arm,
        "keys": {key: parse_override(f"{key}={text}")[1] for key, text in texts},
        **{key: summary["score"][key] for key in ("mean", "spread", "worst")},
        "tasks": outcome.task_means("score"),
        "bytes": {key: summary["bytes"][key] for key in ("up", "down")},
        "seconds": summary["seconds"],
        "adapters_sha256": summary["adapters_sha256"],
    }


def compare_tasks(
    arms: Mapping[str, Sequence[Outcome]], ceilings: Sequence[Outcome]
) -> dict[str, dict[str, Any]]:
    """Every task by itself, in its own metric: majority, ceiling and the arms' means over seeds."""
    outcomes = [outcome for own in arms.values() for outcome in own]
    majorities = _means(outcome.task_means("majority") for outcome in outcomes)
    best = _means(outcome.task_means("score") for outcome in ceilings)
    means = {arm: _means(o.task_means("score") for o in own) for arm, own in arms.items()}
    metrics = {o.task_of(c): name for o in outcomes for c, name in o.summary["metrics"].items()}
    found = {}
    for task, majority in majorities.items():
        # Arms may differ in their tasks.
        scores = {arm: of_task[task] for arm, of_task in means.items() if task in of_task}
        found[task] = {
            "metric": metrics[task],
            "majority": majority,
            "ceiling": best.get(task),
            "arms": scores,
            # Rounded, for a lead of exactly two points is not more than two.
            "at_chance": round(best.get(task, max(scores.values())) - majority, 9) <= CHANCE,
        }
    return found


def _clients(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One arm's clients averaged over seeds; gains over training alone where that was done."""
    scores = _means(summary["score"]["clients"] for summary in summaries)
    alone = _means(summary.get("alone", {}).get("clients", {}) for summary in summaries)
    gains = {client: scores[client] - alone[client] for client in alone}
    return {"score": scores, "gain": gains, "worst_gain": min(gains.values(), default=None)}


def _means(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every key over the parts that have it."""
    values: dict[str, list[float]] = {}
    for part in parts:
        for key, value in part.items():
            values.setdefault(key, []).append(value)
    return {key: statistics.fmean(values[key]) for key in sorted(values)}


def compare_arms(arms: Mapping[str, Sequence[Outcome]]) -> list[dict[str, Any]]:
    """Every arm against the first, paired on the mean score of each seed."""
    means = {arm: [o.summary["score"]["mean"] for o in own] for arm, own in arms.items()}
    first, *others = means
    return [
        {"first": first, "second": name, "seeds": len(means[name])}
        | paired_comparison(means[first], means[name])
        for name in others
    ]


def _csv(rows: Sequence[Row], tasks: Sequence[str]) -> str:
    text = io.StringIO()
    keys = list(rows[0]["keys"])
    columns = [*keys, "mean", "spread", "worst", *(f"task:{task}" for task in tasks)]
    columns += ["up", "down", "seconds", "adapters_sha256"]
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        scores = {f"task:{task}": score for task, score in row["tasks"].items()}
        writer.writerow({**row, **scores, **row["bytes"], **row["keys"]})
    return text.getvalue()
