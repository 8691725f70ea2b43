"""Multi-query associative recall: sequences that only a memory can answer.

A sequence lists pairs, key value key value ..., then asks for keys at random places, far from
their pair: `0` fills the gaps. Tokens 1 to V/2 - 1 are keys and V/2 to V - 1 values, so a model
that forgets the pairs can at best guess among V/2 values. (The task is that of Zoology, Arora et
al. 2023; the sequences are drawn here.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atlas.errors import InputError
from atlas.memory.training.loop import Lines
from atlas.memory.training.losses import IGNORED
from atlas.runs.seeds import generator

BLANK = 0

Grid = NDArray[np.int64]


@dataclass(frozen=True)
class RecallTask:
    """How hard: vocabulary size, tokens per sequence, pairs per sequence, all asked for once."""

    vocabulary: int = 64
    length: int = 32
    pairs: int = 4

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if self.pairs < 1:
            raise InputError(f"task.pairs: {self.pairs}; allowed: at least 1")
        smallest = 2 * (self.pairs + 1)
        if self.vocabulary < smallest:
            raise InputError(
                f"task.vocabulary: {self.vocabulary}; allowed: at least {smallest}, "
                f"for {self.pairs} different keys and values"
            )
        if self.length < 4 * self.pairs:
            raise InputError(
                f"task.length: {self.length}; allowed: at least {4 * self.pairs}, "
                f"for {self.pairs} pairs and as many questions"
            )


def draw_recall(task: RecallTask, count: int, seed: int, *address: str | int) -> Lines:
    """Sequences of one address of one run; equal arguments give equal sequences.

    Args:
        task: How hard.
        count: Sequences; at least one.
        seed: Of the run.
        *address: What they are for, for example ``"train", step``.

    Returns:
        ids and targets, int64. Targets are not shifted: the one at a question is its answer.
    """
    if count < 1:
        raise InputError(f"count: {count}; allowed: at least 1 sequence")
    draw = generator(seed, "recall", *address)
    half = task.vocabulary // 2
    keys = _distinct(draw, count, half - 1, task.pairs) + 1
    values = _distinct(draw, count, task.vocabulary - half, task.pairs) + half
    listed = 2 * task.pairs
    places = _distinct(draw, count, (task.length - listed + 1) // 2, task.pairs) * 2 + listed
    ids = np.full((count, task.length), BLANK, dtype=np.int64)
    ids[:, 0:listed:2] = keys
    ids[:, 1:listed:2] = values
    targets = np.full_like(ids, IGNORED)
    np.put_along_axis(ids, places, keys, axis=1)
    np.put_along_axis(targets, places, values, axis=1)
    return Lines(torch.from_numpy(ids), torch.from_numpy(targets))


@dataclass(frozen=True)
class RecallLines:
    """Recall as the sequences of a run; there is always more to draw.

    Attributes:
        task: How hard.
        seed: Of the run.
    """

    task: RecallTask
    seed: int

    @property
    def vocabulary(self) -> int:
        """Of the task."""
        return self.task.vocabulary

    @property
    def identity(self) -> str:
        """What is drawn follows from the settings alone."""
        return f"{self.task}, seed {self.seed}"

    @property
    def chance(self) -> float:
        """Share of right answers of a guess among all values."""
        return 1 / (self.vocabulary - self.vocabulary // 2)

    def training(self, step: int, count: int) -> Lines:
        """New ones at every step."""
        return draw_recall(self.task, count, self.seed, "train", step)

    def held_out(self, purpose: str, count: int) -> Lines:
        """Others than those of training."""
        return draw_recall(self.task, count, self.seed, purpose)


def _distinct(draw: np.random.Generator, count: int, size: int, picks: int) -> Grid:
    """`picks` different numbers below `size` in random order, for each of `count` rows."""
    return np.argsort(draw.random((count, size)), axis=1)[:, :picks].astype(np.int64)
