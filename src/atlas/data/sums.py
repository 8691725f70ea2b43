"""Modular arithmetic as tokens: a o b = c, five of them, one after the other.

Some held-out pairs are stored and looked up when a memory is tested; the others are never in any
memory, and whether their answers are known says what was learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from atlas.data.arithmetic import OPERATIONS, SIGNS, ArithmeticTask
from atlas.data.text import TextLines
from atlas.errors import InputError
from atlas.memory.training.episode_batches import ARITHMETIC, EpisodeBatch
from atlas.memory.training.grokking.equations import Equations
from atlas.memory.training.loop import Lines
from atlas.memory.training.losses import IGNORED
from atlas.runs.seeds import generator

TOKENS = 5
"""Of an equation."""
ANSWER = 4
"""The place of its answer."""


def symbols(modulus: int) -> list[str]:
    """What the tokens of sums are called: residues, signs, and the equals sign."""
    return [f"<|{name}|>" for name in (*range(modulus), *SIGNS.values(), "=")]


@dataclass(frozen=True)
class SumLines:
    """Equations as sequences.

    Attributes:
        task: Which, and which of them are trained on.
        tokens: The ids of `symbols`.
        mask: The token that stands for a hidden one.
        length: The most tokens of a sequence; as many whole equations as fit.
    """

    task: ArithmeticTask
    tokens: Sequence[int]
    mask: int
    length: int

    def __post_init__(self) -> None:
        """Refuse sequences without room."""
        if self.length < TOKENS:
            raise InputError(f"task.length: {self.length}; allowed: at least {TOKENS}, for a sum")

    @cached_property
    def trained(self) -> Equations:
        """What is trained on."""
        return self.task.training()

    @cached_property
    def shuffled(self) -> Equations:
        """What is trained on in another order, so that the first few are of all kinds."""
        order = generator(self.task.seed, "arithmetic", "shuffled").permutation(len(self.trained))
        return self.trained.pick(torch.from_numpy(order.astype(np.int64)))

    @cached_property
    def asked(self) -> Equations:
        """Held-out pairs that are in no memory, ever."""
        return self._held_out(0)

    @cached_property
    def stored(self) -> Equations:
        """Held-out pairs that are put into a memory when it is tested."""
        return self._held_out(1)

    def residues(self) -> Tensor:
        """The ids of the residues [p]."""
        return torch.tensor(self.tokens[: self.task.modulus])

    def encode(self, equations: Equations) -> Tensor:
        """[N, 5]."""
        table, p = torch.tensor(self.tokens), self.task.modulus
        equals = torch.full_like(equations.a, p + len(OPERATIONS))
        parts = (equations.a, p + equations.operation, equations.b, equals, equations.answer)
        return table[torch.stack(parts, 1)]

    def questions(self, equations: Equations) -> Lines:
        """The left sides with their equals signs, each by itself, asked for what comes next."""
        ids = self.encode(equations)
        targets = torch.full_like(ids[:, :ANSWER], IGNORED)
        targets[:, -1] = ids[:, ANSWER]
        return Lines(ids[:, :ANSWER].contiguous(), targets)

    def batch(self, pool: Equations, rows: int, draw: np.random.Generator) -> EpisodeBatch:
        """Sequences of equations drawn from a pool; in retrieval every answer is hidden.

        Nothing but the answers carries a loss: operands and signs are drawn by chance.
        """
        each = self.length // TOKENS
        picked = torch.from_numpy(draw.integers(len(pool), size=rows * each))
        ids = self.encode(pool.pick(picked)).reshape(rows, each * TOKENS)
        answers = torch.arange(each) * TOKENS + ANSWER
        following = torch.full_like(ids, IGNORED)
        following[:, answers - 1] = ids[:, answers]
        masked, targets = ids.clone(), torch.full_like(ids, IGNORED)
        masked[:, answers] = self.mask
        targets[:, answers] = ids[:, answers]
        questions = torch.full_like(ids, IGNORED)
        questions[:, answers] = torch.arange(rows * each).reshape(rows, each)
        return EpisodeBatch(ARITHMETIC, Lines(ids, following), Lines(masked, targets), questions)

    def _held_out(self, half: int) -> Equations:
        every = self.task.held_out()
        order = generator(self.task.seed, "arithmetic", "stored").permutation(len(every))
        return every.pick(torch.from_numpy(order[half::2].astype(np.int64)))


@dataclass(frozen=True)
class TextAndSums:
    """Text and sums for training on the next token: every batch is one or the other, by chance.

    Attributes:
        lines: The text.
        sums: The sums.
        share: Of batches that are sums.
    """

    lines: TextLines
    sums: SumLines
    share: float

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.lines.vocabulary

    @property
    def identity(self) -> str:
        """The text and the sums."""
        return f"{self.lines.identity}, {self.sums.task.identity}"

    @property
    def chance(self) -> float:
        """Of the text; of sums alone, how often a guess is right."""
        return self.sums.task.chance if self.share == 1 else self.lines.chance

    def training(self, step: int, count: int) -> Lines:
        """Sequences of text, or of sums that are trained on."""
        draw = generator(self.lines.seed, "sums", "train", step)
        if draw.random() < self.share:
            return self.sums.batch(self.sums.trained, count, draw).storage
        return self.lines.training(step, count)

    def held_out(self, purpose: str, count: int) -> Lines:
        """Text that nothing is trained on; of sums alone, held-out ones."""
        if self.share == 1:
            asked = self.sums.asked
            return self.sums.questions(asked.pick(torch.arange(min(count, len(asked)))))
        return self.lines.held_out(purpose, count)
