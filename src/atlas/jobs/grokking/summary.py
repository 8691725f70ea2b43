"""The results of a grokking run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from atlas.build.grokking import GrokkingRun
from atlas.jobs.grokking.series import Series
from atlas.memory.training.grokking.measures import Measured
from atlas.memory.training.grokking.phase import first_starts
from atlas.runs.checkpoint import tensors_sha256

KNOWN = 0.99
"""The accuracy at which equations count as known."""


def summarise(
    run: GrokkingRun,
    found: Mapping[str, Measured],
    series: Mapping[str, Series],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """What `summary.json` holds; its first figures are of the first arm.

    Args:
        run: What was trained.
        found: How each arm ended.
        series: What was measured on the way, by arm.
        seconds: Of training and measuring, by arm.
    """
    first = next(iter(run.learners))
    arms = {
        arm: _arm(run, arm, found[arm], series[arm]) | {"seconds": seconds[arm]} for arm in found
    }
    told = ("phases", "jump", "fourier", "circular", "train_accuracy", "test_accuracy")
    summary = {
        "kind": run.config.kind,
        "task": run.config.task.name,
        "seed": run.config.seed,
        "steps": run.config.train.steps,
        "seconds": sum(seconds.values()),
        "chance": run.task.chance,
        "pairs": {"learned": len(run.learned), "held_out": len(run.held_out)},
        "accuracy": {arm: own["test_accuracy"] for arm, own in arms.items()},
        "parameters": arms[first]["parameters"],
        **{key: arms[first][key] for key in told},
        "arms": arms,
    }
    if "control" in arms and first != "control":
        summary["control"] = {key: arms["control"][key] for key in told}
    return summary


def _arm(run: GrokkingRun, arm: str, found: Measured, series: Series) -> dict[str, Any]:
    numbers, learner = found.numbers, run.learners[arm]
    jump = series.jump()
    return {
        "phases": [asdict(phase) for phase in first_starts(series.phases())],
        "jump": None if jump is None else asdict(jump),
        "memorised": series.first_step("train_accuracy", KNOWN),
        "generalised": series.first_step("test_accuracy", KNOWN),
        "fourier": {
            "neurons": numbers["fourier_concentration"],
            "embedding": numbers["embedding_concentration"],
            "gini": numbers["embedding_gini"],
            "frequencies": found.frequencies,
        },
        "circular": {
            "r_squared": numbers["circular_fit"],
            "isotropy": numbers["circular_isotropy"],
        },
        **{
            key: numbers[key]
            for key in (
                "train_accuracy",
                "test_accuracy",
                "train_loss",
                "test_loss",
                "excluded_loss",
                "restricted_loss",
                "weight_norm",
                "softmax_collapse",
            )  # fmt: skip
        },
        "operations": {
            name: {key: own[key] for key in ("test_accuracy", "fourier_concentration")}
            for name, own in found.operations.items()
        },
        "parameters": learner.parameters,
        "weights_sha256": tensors_sha256(dict(learner.model.named_parameters())),
    }


def save_weights(model: nn.Module, place: Path) -> None:
    """The weights as safetensors; docs/grokking.md says how to load them."""
    place.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu() for name, value in model.named_parameters()}
    save_file(weights, place / "model.safetensors")
