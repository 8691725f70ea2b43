"""The results of a memory run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from atlas.build.memory import MemoryRun
from atlas.jobs.memory.progress import ArmProgress, wave_table
from atlas.jobs.memory.scores import ArmScore, causal_table
from atlas.memory.training.episode_batches import ARITHMETIC, WORDS
from atlas.memory.training.grokking.jump import find_jump
from atlas.memory.training.grokking.together import moves_together
from atlas.runs.checkpoint import tensors_sha256
from atlas.runs.seeds import generator

NORMS = {"M": "M_norm", "S": "S_norm"}


def summarise(
    run: MemoryRun,
    scores: Mapping[str, ArmScore],
    seconds: Mapping[str, float],
    progress: Mapping[str, ArmProgress],
) -> dict[str, Any]:
    """What `summary.json` holds; its first figures are of the first arm.

    Args:
        run: What was trained.
        scores: On the test, by arm.
        seconds: Of training, by arm.
        progress: What is remembered of each arm's rounds.
    """
    first = next(iter(run.learners))
    layers = by_layer(scores[first].memory)
    return {
        "kind": run.config.kind,
        "task": run.config.task.name,
        "objective": run.config.objective,
        "seed": run.config.seed,
        "steps": run.config.train.steps,
        "seconds": sum(seconds.values()),
        "loss": scores[first].loss,
        "accuracy": {arm: score.accuracy for arm, score in scores.items()},
        "chance": run.sequences.chance,
        "gates": _gates(layers, run.learners[first].floors(run.config.train.steps).mix),
        "state": _norms(layers),
        "parameters": run.learners[first].parameters,
        "arms": {
            arm: {
                "loss": score.loss,
                "accuracy": score.accuracy,
                **score.figures,
                "best": progress[arm].best,
                "seconds": seconds[arm],
                "parameters": run.learners[arm].parameters,
                "weights_sha256": tensors_sha256(dict(run.whole_model(arm).named_parameters())),
            }
            for arm, score in scores.items()
        },
        **scores[first].figures,
        **_retrieval(run, scores[first]),
        **_arithmetic(run, first, scores[first], progress[first]),
    }


def _retrieval(run: MemoryRun, score: ArmScore) -> dict[str, Any]:
    """Whether the memory was used: masked words, and sums that were stored, by whose memory."""
    if score.retrieval is None:
        return {}
    tables = {
        "retrieval": causal_table(score.retrieval, WORDS, run.config.seed),
        "lookup": causal_table(score.retrieval, ARITHMETIC, run.config.seed),
    }
    return {name: table for name, table in tables.items() if table is not None}


def _arithmetic(run: MemoryRun, arm: str, score: ArmScore, progress: ArmProgress) -> dict[str, Any]:
    """How the sums were learned: phases, waves, and whether language moved with them."""
    if run.reading.sums is None:
        return {}
    waves = wave_table(run, run.learners[arm])
    circle = ("frequency", "r_squared", "isotropy")
    known = progress.series["math_accuracy"]
    jump = find_jump(progress.steps, [value or 0.0 for value in known])
    found = {
        "phases": [{"name": own.name, "step": own.step} for own in progress.phases()],
        "jump": None if jump is None else jump.step,
        "fourier": {name: own["concentration"] for name, own in waves.items()},
        "circular": {name: {key: own[key] for key in circle} for name, own in waves.items()},
        "train_accuracy": score.figures["math_train_accuracy"],
        "test_accuracy": score.figures["math_accuracy"],
    }
    words = progress.series["masked_word_accuracy"]
    if None in words or None in known:
        return found
    draw = generator(run.config.seed, "together")
    names = ("masked words", "arithmetic")
    together = moves_together([w or 0 for w in words], [k or 0 for k in known], draw, names=names)
    return found | {"together": asdict(together)}


def by_layer(memory: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Measures "layer/measure" as a table per layer."""
    layers: dict[str, dict[str, float]] = {}
    for name, value in memory.items():
        layer, _, measure = name.partition("/")
        layers.setdefault(layer, {})[measure] = value
    return layers


def _gates(layers: Mapping[str, Mapping[str, float]], floor: float) -> dict[str, Any]:
    """The memory's share in the layers' output and its floor, and the means of all gates."""
    means = {
        layer: {
            measure.removeprefix("gate.").removesuffix(".mean"): value
            for measure, value in measures.items()
            if measure.startswith("gate.") and measure.endswith(".mean")
        }
        for layer, measures in layers.items()
    }
    shares = [gates["mix"] for gates in means.values()]
    return {
        "mean": statistics.fmean(shares) if shares else None,
        "floor": floor,
        "per_layer": means,
    }


def _norms(layers: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Norms of memory and momentum after the last test sequences."""
    per_layer = {
        layer: {short: measures[name] for short, name in NORMS.items()}
        for layer, measures in layers.items()
    }
    means = {
        short: statistics.fmean(norms[short] for norms in per_layer.values())
        for short in (NORMS if per_layer else ())
    }
    return {"norms": means, "per_layer": per_layer}
