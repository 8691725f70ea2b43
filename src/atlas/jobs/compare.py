"""All combinations of comma values, one table; the same command again goes on where it stopped."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.config.grid import Combination, expand
from atlas.config.load import dump_config, load_config
from atlas.config.models import FederationConfig
from atlas.config.overrides import parse_override
from atlas.engines.local import Progress
from atlas.federation.strategy import find_strategy
from atlas.jobs.run import Watch, resume_run, start_run
from atlas.ops.statistics import paired_comparison
from atlas.runs.folder import RunFolder, write_text_atomic
from atlas.runs.summary import read_summary

CEILING = "pooled"
Announce = Callable[[int, int, Combination], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """What is compared: the settings of every combination, and the ceiling of each seed."""

    name: str
    combinations: tuple[Combination, ...]
    configs: tuple[FederationConfig, ...]
    ceilings: dict[int, FederationConfig]


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
    stopped ones resumed. Results are also written there as `compare.json` and `compare.csv`.
    """
    folder = parent / study.name
    jobs = list(zip(study.combinations, study.configs, strict=True))
    jobs += [({"strategy": CEILING, "seed": str(s)}, c) for s, c in study.ceilings.items()]
    summaries = []
    for number, (combination, config) in enumerate(jobs, start=1):
        if announce:
            announce(number, len(jobs), combination)
        summary = _summary_of(config, folder / _slug(combination), watch, progress)
        if summary is None:
            return None
        summaries.append(summary)
    done = len(study.configs)
    result: dict[str, Any] = {
        "study": study.name,
        "rows": [_row(c, s) for c, s in zip(study.combinations, summaries[:done], strict=True)],
        "majority": statistics.fmean(summaries[0]["majority"]["clients"].values()),
        "ceiling": _mean_score(summaries[done:]),
        "tests": compare_arms(study.combinations, summaries[:done]),
    }
    write_text_atomic(folder / "compare.json", json.dumps(result, indent=2, sort_keys=True) + "\n")
    write_text_atomic(folder / "compare.csv", _csv(result["rows"]))
    return result


def _slug(combination: Combination) -> str:
    """A folder name for a combination: readable, and distinct by its hash."""
    text = json.dumps(combination)
    words = re.sub(r"[^A-Za-z0-9_]+", "-", " ".join(combination.values())).strip("-")
    return f"{words[:40]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _summary_of(
    config: FederationConfig, place: Path, watch: Watch | None, progress: Progress | None
) -> dict[str, Any] | None:
    runs = sorted(place.iterdir()) if place.is_dir() else []
    existing = [RunFolder(path) for path in runs if (path / "config.yaml").is_file()]
    if existing and existing[0].summary.exists():
        return read_summary(existing[0].summary)
    if existing:
        return resume_run(existing[0].path, watch, progress).summary
    return start_run(config, place, watch, progress).summary


def _row(combination: Combination, summary: dict[str, Any]) -> Row:
    return {
        "keys": {key: parse_override(f"{key}={text}")[1] for key, text in combination.items()},
        **{key: summary["score"][key] for key in ("mean", "spread", "worst")},
        "bytes": {key: summary["bytes"][key] for key in ("up", "down")},
        "seconds": summary["seconds"],
        "adapters_sha256": summary["adapters_sha256"],
    }


def _mean_score(summaries: Sequence[dict[str, Any]]) -> float | None:
    return statistics.fmean(s["score"]["mean"] for s in summaries) if summaries else None


def arm_of(combination: Combination) -> str:
    """What is compared, whatever the seed."""
    return " ".join(f"{k}={v}" for k, v in combination.items() if k != "seed") or "all"


def compare_arms(
    combinations: Sequence[Combination], summaries: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Every arm against the first, paired on the mean score of each seed."""
    arms: dict[str, list[float]] = {}
    for combination, summary in zip(combinations, summaries, strict=True):
        arms.setdefault(arm_of(combination), []).append(summary["score"]["mean"])
    names = list(arms)
    return [
        {"first": names[0], "second": name, "seeds": len(arms[name])}
        | paired_comparison(arms[names[0]], arms[name])
        for name in names[1:]
    ]


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    keys = list(rows[0]["keys"])
    columns = [*keys, "mean", "spread", "worst", "up", "down", "seconds", "adapters_sha256"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = {**row, **row["bytes"], **row["keys"]}
        writer.writerow([values[column] for column in columns])
    return text.getvalue()
