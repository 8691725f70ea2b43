"""Modular arithmetic: all pairs of residues, some to learn from and the others held out.

A model that has learned the answers by heart knows the training pairs alone; one that has found
the rule also knows the held-out ones. (The task is that of Power et al. 2022.) Division is by
residues other than zero: a / b = a * b^-1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from atlas.errors import InputError
from atlas.memory.training.grokking.equations import Equations, join
from atlas.ops.fourier import is_prime
from atlas.runs.seeds import generator

MODULUS = 97


def _divide(a: Tensor, b: Tensor, p: int) -> Tensor:
    inverse = torch.tensor([0, *(pow(value, -1, p) for value in range(1, p))])
    return a * inverse[b] % p


ANSWERS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "add": lambda a, b, p: (a + b) % p,
    "subtract": lambda a, b, p: (a - b) % p,
    "multiply": lambda a, b, p: a * b % p,
    "divide": _divide,
}
OPERATIONS = tuple(ANSWERS)
"""In the order in which they are numbered, whichever of them a task asks for."""
SIGNS = dict(zip(OPERATIONS, ("+", "-", "*", "/"), strict=True))


@dataclass(frozen=True)
class ArithmeticTask:
    """Which equations, and which of them are learned from.

    The order of the residues counts: a + b may be learned from while b + a is held out, as in
    the papers.

    Attributes:
        modulus: The prime p; residues are 0 to p - 1.
        operations: Some of `OPERATIONS`.
        fraction: Share of each operation's pairs that is learned from.
        seed: Of the run; it decides which pairs.
    """

    modulus: int = MODULUS
    operations: tuple[str, ...] = ("add",)
    fraction: float = 0.4
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        if self.modulus < 5 or not is_prime(self.modulus):
            raise InputError(f"task.modulus: {self.modulus}; allowed: a prime of at least 5")
        if not self.operations or len(set(self.operations)) < len(self.operations):
            raise InputError(
                f"task.operations: {list(self.operations)}; allowed: one or more, each once"
            )
        for name in self.operations:
            if name not in ANSWERS:
                raise InputError(f"task.operations: {name}; allowed: {', '.join(OPERATIONS)}")
        if not 0 < self.fraction < 1:
            raise InputError(f"task.fraction: {self.fraction}; allowed: between 0 and 1")

    @property
    def identity(self) -> str:
        """What is asked follows from the settings alone."""
        return f"{self}"

    @property
    def chance(self) -> float:
        """Share of right answers of a guess."""
        return 1 / self.modulus

    def pairs(self, operation: str) -> Equations:
        """All pairs of one operation, a by a."""
        p = self.modulus
        grid = torch.cartesian_prod(torch.arange(p), torch.arange(p))
        a, b = grid.unbind(1)
        if operation == "divide":
            a, b = a[b != 0], b[b != 0]
        number = torch.full_like(a, OPERATIONS.index(operation))
        return Equations(number, a, b, ANSWERS[operation](a, b, p))

    def training(self) -> Equations:
        """What is learned from: of every operation the same share."""
        return join([self._split(name)[0] for name in self.operations])

    def held_out(self) -> Equations:
        """All the others."""
        return join([self._split(name)[1] for name in self.operations])

    def _split(self, operation: str) -> tuple[Equations, Equations]:
        every = self.pairs(operation)
        count = min(max(1, round(self.fraction * len(every))), len(every) - 1)
        draw = generator(self.seed, "arithmetic", operation, self.modulus)
        learned = torch.zeros(len(every), dtype=torch.bool)
        learned[torch.from_numpy(draw.permutation(len(every))[:count].astype(np.int64))] = True
        return every.pick(learned), every.pick(~learned)
