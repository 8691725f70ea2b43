"""Settings of a grokking run made into models and the equations they learn."""

from __future__ import annotations

from dataclasses import dataclass

from atlas.config.grokking import GrokkingArm, GrokkingConfig, GrokkingTrainSettings
from atlas.data.arithmetic import OPERATIONS, ArithmeticTask
from atlas.memory.training.grokking.equations import Equations
from atlas.memory.training.grokking.measures import Measured, circle_of, measure
from atlas.memory.training.grokking.models import MODELS
from atlas.memory.training.grokking.trainer import ArithmeticTrainer
from atlas.runs.devices import find_device


@dataclass(frozen=True)
class GrokkingRun:
    """All that is trained, and on what.

    Attributes:
        config: The settings.
        task: Which equations there are.
        learners: By arm.
        learned: The equations that all of them learn from.
        held_out: The others.
    """

    config: GrokkingConfig
    task: ArithmeticTask
    learners: dict[str, ArithmeticTrainer]
    learned: Equations
    held_out: Equations

    def measure(self, arm: str) -> Measured:
        """An arm's model as it is now."""
        numbers = {name: OPERATIONS.index(name) for name in self.task.operations}
        model = self.learners[arm].model
        return measure(model, self.learned, self.held_out, numbers, self.task.modulus)

    def circles(self, arm: str) -> dict[str, object]:
        """An arm's embedding in the plane of its strongest frequency, by operation."""
        model = self.learners[arm].model
        return {name: circle_of(model, name, self.task.modulus) for name in self.task.operations}


def build_grokking(config: GrokkingConfig) -> GrokkingRun:
    """Make the models of all arms; they start from the same weights.

    Raises:
        InputError: The task cannot be asked, or there is no such device.
    """
    device, own = find_device(config.device), config.task
    task = ArithmeticTask(own.modulus, tuple(own.operations), own.fraction, config.seed)
    learned, held_out = task.training().to(device), task.held_out().to(device)
    learners: dict[str, ArithmeticTrainer] = {}
    for arm in config.arms:
        model = MODELS[config.model.kind](
            own.modulus, config.model.width, len(OPERATIONS), config.seed
        )
        settings = arm_settings(config.train, arm)
        learners[arm] = ArithmeticTrainer(model.to(device), settings, learned, config.seed)
    return GrokkingRun(config, task, learners, learned, held_out)


def arm_settings(train: GrokkingTrainSettings, arm: GrokkingArm) -> GrokkingTrainSettings:
    """How an arm is trained: the control has nothing that keeps weights from growing."""
    if arm == "control":
        return train.model_copy(update={"weight_decay": 0.0, "gradient": "plain"})
    return train
