"""What was measured of an arm so far: phases and jumps are decided on it, never on one point."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from atlas.memory.training.grokking.jump import Jump, find_jump
from atlas.memory.training.grokking.phase import PhaseStart, find_phases

COLUMNS = ("step", "fourier_concentration", "test_accuracy", "train_accuracy")


@dataclass
class Series:
    """Points in time.

    Attributes:
        points: One row a measurement, one number for each of `COLUMNS`.
    """

    points: list[list[float]] = field(default_factory=list)

    def add(self, step: int, numbers: dict[str, float]) -> None:
        """One more measurement."""
        self.points.append([float(step), *(numbers[name] for name in COLUMNS[1:])])

    def column(self, name: str) -> list[float]:
        """One measure over time."""
        place = COLUMNS.index(name)
        return [point[place] for point in self.points]

    @property
    def steps(self) -> list[int]:
        """Where it was measured."""
        return [int(step) for step in self.column("step")]

    def phases(self) -> list[PhaseStart]:
        """The phases so far; the last one is where it is."""
        fourier, accuracy = self.column("fourier_concentration"), self.column("test_accuracy")
        return find_phases(self.steps, fourier, accuracy)

    def jump(self) -> Jump | None:
        """The jump of the accuracy on held-out pairs, if it has one."""
        return find_jump(self.steps, self.column("test_accuracy"))

    def first_step(self, name: str, least: float) -> int | None:
        """Where a measure first comes to a value."""
        reached = (s for s, v in zip(self.steps, self.column(name), strict=True) if v >= least)
        return next(reached, None)

    def tensor(self) -> Tensor:
        """As a checkpoint holds it: float64, so that nothing is rounded."""
        return torch.tensor(self.points, dtype=torch.float64).reshape(-1, len(COLUMNS))

    @classmethod
    def of(cls, tensor: Tensor) -> Series:
        """Back from a checkpoint."""
        return cls(tensor.tolist())
