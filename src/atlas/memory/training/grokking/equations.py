"""Questions of modular arithmetic and their answers, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Equations:
    """Some questions and their answers, all int64 [N].

    Attributes:
        operation: Its number, in the order that the task gives.
        a: The first residue.
        b: The second one.
        answer: The residue that is right.
    """

    operation: Tensor
    a: Tensor
    b: Tensor
    answer: Tensor

    def __len__(self) -> int:
        """How many."""
        return len(self.answer)

    def pick(self, rows: Tensor) -> Equations:
        """Some of them, by row numbers or a mask."""
        return Equations(*(getattr(self, part.name)[rows] for part in fields(self)))

    def to(self, device: torch.device) -> Equations:
        """The same on a device."""
        return Equations(*(getattr(self, part.name).to(device) for part in fields(self)))


def join(parts: Sequence[Equations]) -> Equations:
    """One after the other."""
    return Equations(
        *(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Equations))
    )
