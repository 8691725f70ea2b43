"""What runs of several arms share: rounds counted in steps, and checkpoints with a part per arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from atlas.runs.checkpoint import Checkpoint


class ArmLearner(Protocol):
    """A model in training."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Weights and moments by name."""
        ...


class Stepwise(Protocol):
    """A job whose length is counted in steps."""

    @property
    def steps(self) -> int:
        """Steps made."""
        ...


def run_steps(
    job: Stepwise, last: int, make_round: Callable[[], None], after_round: Callable[[], bool]
) -> bool:
    """Make rounds until `last` steps are made; False if `after_round` said to stop before."""
    while job.steps < last:
        make_round()
        if not after_round():
            break
    return job.steps >= last


def arm_tensors(learners: Mapping[str, ArmLearner]) -> dict[str, Tensor]:
    """The tensors of all arms, each under its arm's name."""
    return {
        f"{arm}|{name}": value
        for arm, learner in learners.items()
        for name, value in learner.tensors().items()
    }


def of_arm(saved: Checkpoint, arm: str) -> dict[str, Tensor]:
    """One arm's tensors of a saved round, under their own names."""
    start = f"{arm}|"
    own = [name for name in saved.tensors if name.startswith(start)]
    return {name.removeprefix(start): saved.tensors[name] for name in own}
