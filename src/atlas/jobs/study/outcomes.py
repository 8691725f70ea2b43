"""What finished runs of a study tell, each by itself and task by task.

Tasks have their own metrics: what can be compared is how far an arm goes towards the ceiling.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlas.config.grid import Case
from atlas.jobs.show import describe_run
from atlas.ops.metrics import share_of_way
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder

Distance = dict[str, dict[str, float]]
SIDES = ("trained", "mixed")


@dataclass(frozen=True)
class RunOutcome:
    """A finished run: what was compared in it, its summary, and the task of every client.

    Attributes:
        distance: How far apart clients of one cluster were in the first and in the last round,
            as trained and as mixed; None where the run did not say.
        error: How far mixtures were from the exact ones, relative to those, averaged over clients,
            cohorts and rounds; None where nothing was mixed.
    """

    case: Case
    summary: dict[str, Any]
    tasks: Mapping[str, str]
    distance: Distance | None = None
    error: float | None = None

    @property
    def arm(self) -> str:
        """What is compared, whatever the seed."""
        return self.case.name

    def task_means(self, part: str) -> dict[str, float]:
        """The clients' `score`, `majority` or `alone`, averaged task by task."""
        return mean_by_key({self.task_of(c): v} for c, v in self.summary[part]["clients"].items())

    def device_means(self) -> dict[str, float]:
        """The clients' scores averaged by device, or by their largest rank where none is named.

        Empty where all are alike.
        """
        budgets, ranks = self.summary.get("budgets", {}), self.summary["ranks"]
        named = {c: budgets.get(c, {}).get("device") or f"rank {max(ranks[c])}" for c in ranks}
        if len(set(named.values())) < 2:
            return {}
        order = sorted(ranks, key=lambda c: (max(ranks[c]), named[c]))
        scores = self.summary["score"]["clients"]
        return mean_by_key({named[c]: scores[c]} for c in order if c in scores)

    def task_of(self, client: str) -> str:
        """A client's task; its own name stands in where the run's events are lost."""
        return self.tasks.get(client, client)


def read_outcome(case: Case, folder: RunFolder, summary: dict[str, Any]) -> RunOutcome:
    """A finished run as its folder holds it."""
    events = read_events(folder.events) if folder.events.exists() else []
    tasks = describe_run(folder)["tasks"]
    return RunOutcome(case, summary, tasks, ends_of_distance(events), mean_error(events))


def ends_of_distance(events: Sequence[Mapping[str, Any]]) -> Distance | None:
    """The distances of the first and the last round that has any, averaged over cohorts."""
    rounds: dict[int, list[dict[str, float]]] = {}
    for event in events:
        found = event.get("distance") if event["event"] == "mixed" else None
        # What is not a number is null in a log.
        if found and all(found.get(side) is not None for side in SIDES):
            rounds.setdefault(event["round"], []).append({side: found[side] for side in SIDES})
    if not rounds:
        return None
    return {"first": mean_by_key(rounds[min(rounds)]), "last": mean_by_key(rounds[max(rounds)])}


def mean_error(events: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean of what the rounds say of their mixtures' errors."""
    told = [event.get("error") for event in events if event["event"] == "mixed"]
    found = [error["mean"] for error in told if error and error["mean"] is not None]
    return statistics.fmean(found) if found else None


def mean_by_key(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every key over the parts that have it."""
    values: dict[str, list[float]] = {}
    for part in parts:
        for key, value in part.items():
            values.setdefault(key, []).append(value)
    return {key: statistics.fmean(values[key]) for key in sorted(values)}


CHANCE = 0.02
"""Where the best beats the majority by no more than this, methods differ by luck alone."""
SeedScores = dict[str, dict[str, float]]
"""By seed, then by task."""


def compare_tasks(
    arms: Mapping[str, Sequence[RunOutcome]], ceilings: Sequence[RunOutcome]
) -> dict[str, dict[str, Any]]:
    """Every task by itself: majority, ceiling and the arms' means over seeds."""
    outcomes = [outcome for own in arms.values() for outcome in own]
    majorities = mean_by_key(outcome.task_means("majority") for outcome in outcomes)
    best = _by_seed(ceilings, "score")
    solo = _by_seed([o for o in outcomes if "alone" in o.summary], "alone")
    scores = {arm: _by_seed(own, "score") for arm, own in arms.items()}
    metrics = {o.task_of(c): name for o in outcomes for c, name in o.summary["metrics"].items()}
    return {
        task: {
            "metric": metrics[task],
            "majority": majority,
            **_one_task(task, majority, scores, solo, best),
        }
        for task, majority in majorities.items()
    }


def _one_task(
    task: str,
    majority: float,
    scores: Mapping[str, SeedScores],
    solo: SeedScores,
    best: SeedScores,
) -> dict[str, Any]:
    ceiling, alone = _mean(best, task), _mean(solo, task)
    means = {arm: _mean(seeds, task) for arm, seeds in scores.items()}
    # Arms may differ in their tasks.
    found = {arm: mean for arm, mean in means.items() if mean is not None}
    top = max(found.values()) if ceiling is None else ceiling
    # A way that is too short, or one end of which is not known, is not measured.
    long = alone is not None and ceiling is not None and ceiling - alone > CHANCE
    ways = {arm: _way(task, scores[arm], solo, best) for arm in found} if long else None
    return {
        "ceiling": ceiling,
        "alone": alone,
        "arms": found,
        "recovered": ways and {arm: share for arm, (share, _) in ways.items()},
        "recovered_error": ways and {arm: error for arm, (_, error) in ways.items()},
        # Rounded, for a lead of exactly two points is not more than two.
        "at_chance": round(top - majority, 9) <= CHANCE,
    }


def _way(
    task: str, scores: SeedScores, solo: SeedScores, best: SeedScores
) -> tuple[float, float | None]:
    """The share of the way from training alone to the ceiling, and its standard error.

    Where the three were not run on the same seeds, their means are all there is.
    """
    rows = (scores, solo, best)
    seeds = [{seed for seed, tasks in row.items() if task in tasks} for row in rows]
    if seeds[0] == seeds[1] == seeds[2]:
        order = sorted(seeds[0])
        return share_of_way(*([row[seed][task] for seed in order] for row in rows))
    score, alone, ceiling = (_mean(row, task) or 0.0 for row in rows)
    return share_of_way([score], [alone], [ceiling])


def _by_seed(outcomes: Sequence[RunOutcome], part: str) -> SeedScores:
    """Task means of every seed; runs of the same seed are averaged."""
    seeds: dict[str, list[dict[str, float]]] = {}
    for outcome in outcomes:
        seeds.setdefault(outcome.case.keys.get("seed", ""), []).append(outcome.task_means(part))
    return {seed: mean_by_key(found) for seed, found in seeds.items()}


def _mean(seeds: SeedScores, task: str) -> float | None:
    return mean_by_key(seeds.values()).get(task)
