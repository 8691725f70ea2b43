"""The results of a memory run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from atlas.build.memory import MemoryRun
from atlas.memory.training.loop import Score
from atlas.runs.checkpoint import tensors_sha256

NORMS = {"M": "M_norm", "S": "S_norm"}


def summarise(
    run: MemoryRun, scores: Mapping[str, Score], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """What `summary.json` holds; its first figures are of the first arm.

    Args:
        run: What was trained.
        scores: On the test, by arm.
        seconds: Of training, by arm.
    """
    first = next(iter(run.learners))
    layers = by_layer(scores[first].memory)
    return {
        "kind": run.config.kind,
        "task": run.config.task.name,
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
                "seconds": seconds[arm],
                "parameters": run.learners[arm].parameters,
                "weights_sha256": tensors_sha256(dict(run.models[arm].named_parameters())),
            }
            for arm, score in scores.items()
        },
    }


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
