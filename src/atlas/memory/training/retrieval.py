"""Whether a memory is used: the same questions with its own memory, an emptied and another one.

Nothing differs between the three but the memory that storage left, so what its own memory answers
beyond the others is what it was used for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atlas.memory.layer.gates import Floors, GateMode
from atlas.memory.layer.state import rows_of
from atlas.memory.training.episode_batches import Episode, EpisodeBatch, States
from atlas.memory.training.episodes import EpisodeReader
from atlas.memory.training.losses import IGNORED, token_loss

OWN, EMPTIED, OTHER = "own", "emptied", "other"


class JudgedAnswers(NamedTuple):
    """JudgedAnswers to the questions of one task.

    Attributes:
        right: Whether all tokens of each were [N].
        stream: Which stream each was of [N].
    """

    right: NDArray[np.bool_]
    stream: NDArray[np.int64]

    @property
    def accuracy(self) -> float:
        """Share of right ones."""
        return float(self.right.mean()) if len(self.right) else 0.0


class Retrieval(NamedTuple):
    """What an episode's questions came to.

    Attributes:
        answers: By memory and by task.
        loss: Mean over the masks, with its own memory.
        memory: What the memory did in retrieval.
    """

    answers: dict[str, dict[str, JudgedAnswers]]
    loss: float
    memory: dict[str, float]


MEMORIES: Mapping[str, Callable[[States], States | None]] = {
    OWN: lambda left: left,
    EMPTIED: lambda left: None,
    OTHER: lambda left: _of_others(left),
}
"""What each of the memories is, made of the one that storage left."""


@torch.no_grad()
def ask(
    reader: EpisodeReader,
    model: nn.Module,
    episode: Episode,
    floors: Floors,
    *,
    rows: int,
    memories: tuple[str, ...] = (OWN,),
) -> Retrieval:
    """Fill memories with an episode's storage and ask for what was in it.

    Args:
        reader: How batches are read.
        model: The model.
        episode: Storage and questions.
        floors: Of training.
        rows: Streams that are read at a time, at least two.
        memories: Which of MEMORIES the questions are asked with, OWN among them.
    """
    found: dict[str, dict[str, list[JudgedAnswers]]] = {name: {} for name in memories}
    loss, masks, seen = 0.0, 0, dict[str, float]()
    for begin, end in _groups(len(episode[0].questions), rows):
        some = [batch.rows(begin, end) for batch in episode]
        before, left = _fill(reader, model, some, floors)
        seen = reader.look(model, some[-1], (before, left), floors)
        for name in memories:
            for batch in some:
                out, _ = reader.read(
                    model, batch.retrieval, MEMORIES[name](left), GateMode.RETRIEVAL, floors
                )
                answers = judge(out.logits, batch, begin)
                found[name].setdefault(batch.task, []).append(answers)
                if name == OWN:
                    loss += float(token_loss(out.logits, batch.retrieval.targets, reduction="sum"))
                    masks += int((batch.retrieval.targets != IGNORED).sum())
    answers_of = {
        name: {task: _joined(parts) for task, parts in tasks.items()}
        for name, tasks in found.items()
    }
    return Retrieval(answers_of, loss / max(1, masks), seen)


def judge(logits: Tensor, batch: EpisodeBatch, first: int = 0) -> JudgedAnswers:
    """A question is right when all its tokens are.

    Args:
        logits: [B, T, V].
        batch: The questions.
        first: The number of the first row's stream.
    """
    masks = batch.questions >= 0
    asked = batch.questions[masks]
    right = (logits.argmax(-1) == batch.retrieval.targets)[masks]
    streams = torch.nonzero(masks)[:, 0] + first
    numbers, place = torch.unique(asked, return_inverse=True)
    every = torch.ones(len(numbers), dtype=torch.long, device=right.device)
    every.scatter_reduce_(0, place, right.long(), "amin")
    own = torch.zeros_like(every).scatter_(0, place, streams)
    return JudgedAnswers(every.bool().cpu().numpy(), own.cpu().numpy())


def _fill(
    reader: EpisodeReader, model: nn.Module, batches: Sequence[EpisodeBatch], floors: Floors
) -> tuple[States | None, States]:
    """The memory before the last batch of storage, and after it."""
    before, memory = None, None
    for batch in batches:
        before = memory
        _, memory = reader.read(model, batch.storage, before, GateMode.STORAGE, floors)
    assert memory is not None
    return before, memory


def _of_others(left: States) -> States:
    """Every stream is given the memory of the one that is half of them away."""
    count = len(left[0].layer.window.seen)
    rows = torch.arange(count).roll(count // 2)
    return [rows_of(state, rows) for state in left]


def _groups(count: int, rows: int) -> list[tuple[int, int]]:
    """Some rows at a time, never one alone: it would have no other."""
    edges = [*range(0, count, max(2, rows)), count]
    if len(edges) > 2 and edges[-1] - edges[-2] == 1:
        del edges[-2]
    return list(zip(edges[:-1], edges[1:], strict=True))


def _joined(parts: list[JudgedAnswers]) -> JudgedAnswers:
    return JudgedAnswers(*(np.concatenate(own) for own in zip(*parts, strict=True)))
