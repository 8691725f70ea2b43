"""A study task by task, each in its own metric: how far every arm goes towards the ceiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atlas.jobs.study.outcomes import Outcome, mean_by_key
from atlas.ops.statistics import share_of_way

CHANCE = 0.02
"""Where the best beats the majority by no more than this, methods differ by luck alone."""
SeedScores = dict[str, dict[str, float]]
"""By seed, then by task."""


def compare_tasks(
    arms: Mapping[str, Sequence[Outcome]], ceilings: Sequence[Outcome]
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


def _by_seed(outcomes: Sequence[Outcome], part: str) -> SeedScores:
    """Task means of every seed; runs of the same seed are averaged."""
    seeds: dict[str, list[dict[str, float]]] = {}
    for outcome in outcomes:
        seeds.setdefault(outcome.case.keys.get("seed", ""), []).append(outcome.task_means(part))
    return {seed: mean_by_key(found) for seed, found in seeds.items()}


def _mean(seeds: SeedScores, task: str) -> float | None:
    return mean_by_key(seeds.values()).get(task)
