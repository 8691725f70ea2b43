"""What an episode is made of: batches with their questions, and how many are read at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.memory.layer.state import BlockState, rows_of
from atlas.memory.training.loop import Lines
from atlas.runs.ranks import Ranks

WORDS, ARITHMETIC = "words", "arithmetic"
States = list[BlockState]
TOGETHER = 4096
"""Tokens of retrieval that are read at once; more need more room and are no faster."""


class EpisodeBatch(NamedTuple):
    """One batch of an episode.

    Attributes:
        task: WORDS or ARITHMETIC.
        storage: The sequences, and what comes next at each token.
        retrieval: The same with masks, and at each mask the token that was there.
        questions: Which question a mask belongs to, negative elsewhere [B, T].
    """

    task: str
    storage: Lines
    retrieval: Lines
    questions: Tensor

    def to(self, device: torch.device) -> EpisodeBatch:
        """The same on a device."""
        storage, retrieval = self.storage.to(device), self.retrieval.to(device)
        return EpisodeBatch(self.task, storage, retrieval, self.questions.to(device))

    def rows(self, begin: int, end: int) -> EpisodeBatch:
        """Some of its streams."""
        storage, retrieval = (
            Lines(own.ids[begin:end], own.targets[begin:end])
            for own in (self.storage, self.retrieval)
        )
        return EpisodeBatch(self.task, storage, retrieval, self.questions[begin:end])

    def part(self, ranks: Ranks) -> EpisodeBatch:
        """This process's streams."""
        if not ranks.several:
            return self
        lines = self.storage.part(ranks), self.retrieval.part(ranks)
        return EpisodeBatch(self.task, *lines, self.questions[ranks.rows(len(self.questions))])


Episode = tuple[EpisodeBatch, ...]


def together(episode: Episode) -> list[tuple[EpisodeBatch, int]]:
    """Batches of retrieval that are read at once, and how many each is made of.

    As retrieval leaves the memory as it is, batches do not wait for one another: those of one task
    are read as more rows of one, up to TOGETHER tokens.
    """
    found = list[tuple[EpisodeBatch, int]]()
    for task in dict.fromkeys(batch.task for batch in episode):
        own = [batch for batch in episode if batch.task == task]
        size = max(1, TOGETHER // own[0].questions.numel())
        for begin in range(0, len(own), size):
            some = own[begin : begin + size]
            found.append((_joined(some), len(some)))
    return found


def _joined(batches: Sequence[EpisodeBatch]) -> EpisodeBatch:
    """One batch of all rows, batch by batch; their questions are counted on."""
    questions, asked = [], 0
    for batch in batches:
        own = batch.questions
        questions.append(torch.where(own < 0, own, own + asked))
        asked += int(own.max()) + 1
    storage = _one_after_another([batch.storage for batch in batches])
    retrieval = _one_after_another([batch.retrieval for batch in batches])
    return EpisodeBatch(batches[0].task, storage, retrieval, torch.cat(questions))


def _one_after_another(some: Sequence[Lines]) -> Lines:
    """All rows; where only some are this process's, their answers are counted together too."""
    counts = [lines.answers for lines in some if lines.answers is not None]
    return Lines(
        torch.cat([lines.ids for lines in some]),
        torch.cat([lines.targets for lines in some]),
        sum(counts) if counts else None,
    )


def repeated(states: States, count: int) -> States:
    """The states of every stream, so many times, for batches that are read at once."""
    if count == 1:
        return states
    rows = torch.arange(len(states[0].layer.window.seen)).repeat(count)
    return [rows_of(state, rows) for state in states]
