"""Episodes of running text and sums: each row of a batch is a stream that a memory reads on.

A stream's batches are the next stretch of its text or more sums, drawn batch by batch; the text
goes on where its last stretch ended. What is masked is decided here, when an episode is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atlas.data.masked_words import NO_WORD, commonest_share, mask_words, whole_words
from atlas.data.sums import SumLines
from atlas.data.text import TextLines, TokenText
from atlas.memory.training.episode_batches import WORDS, Episode, EpisodeBatch
from atlas.memory.training.loop import Lines
from atlas.memory.training.losses import IGNORED
from atlas.runs.seeds import generator


@dataclass(frozen=True)
class EpisodeStreams:
    """Where episodes come from; equal arguments give equal ones.

    Attributes:
        text: The text.
        sums: The sums; None: text alone.
        share: Of batches that are sums.
        length: Tokens of a text's stretch.
        batches: Of an episode.
        masked: Share of words that are hidden.
        mask: The token that hides.
        seed: Of the run.
    """

    text: TokenText
    sums: SumLines | None
    share: float
    length: int
    batches: int
    masked: float
    mask: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse a text that has no room for a stream."""
        self.text.check(self.length * self.batches + 1)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.text.vocabulary

    @property
    def identity(self) -> str:
        """The text and the sums."""
        own = "" if self.sums is None else f", {self.sums.task.identity}"
        return self.text.identity + own

    @property
    def chance(self) -> float:
        """How often the commonest word is right; of sums alone, how often a guess is."""
        if self.sums is not None and self.share == 1:
            return self.sums.task.chance
        train, test = self.text.parts["train"], self.text.parts["test"]
        return commonest_share((train.ids, train.words), (test.ids, test.words))

    @property
    def lines(self) -> TextLines:
        """The text alone, for its loss."""
        return TextLines(self.text, self.length, self.seed)

    def training(self, step: int, count: int) -> Episode:
        """A new one at every step, of the training text and the sums that are trained on."""
        draw = generator(self.seed, "episode", "train", step)
        starts = draw.integers(self._last("train") + 1, size=count)
        return self._episode("train", starts, draw, "train", step)

    def held_out(self, purpose: str, count: int) -> Episode:
        """Streams spread evenly over a part that nothing is trained on, with held-out sums."""
        starts = np.linspace(0, self._last(purpose), count).astype(np.int64)
        draw = generator(self.seed, "episode", purpose)
        return self._episode(purpose, starts, draw, purpose, 0)

    def _episode(
        self,
        part: str,
        starts: NDArray[np.int64],
        draw: np.random.Generator,
        purpose: str,
        step: int,
    ) -> Episode:
        kinds = draw.random(self.batches) < (self.share if self.sums is not None else 0.0)
        found, places = list[EpisodeBatch](), starts
        for number, is_sum in enumerate(kinds):
            own = generator(self.seed, "episode", purpose, step, "batch", number)
            if is_sum and self.sums is not None:
                pool = self.sums.trained if part == "train" else self.sums.stored
                found.append(self.sums.batch(pool, len(starts), own))
            else:
                found.append(self._words(part, places, own))
                places = places + self.length
        return tuple(found)

    def _words(
        self, part: str, starts: NDArray[np.int64], draw: np.random.Generator
    ) -> EpisodeBatch:
        own = self.text.parts[part]
        places = starts[:, None] + np.arange(self.length + 1)
        ids = own.ids[places]
        around = starts[:, None] + np.arange(-1, self.length + 1)
        edges = np.where(around < 0, NO_WORD, own.words[around])
        masked, questions = mask_words(
            ids[:, :-1], whole_words(edges), self.masked, self.mask, draw
        )
        targets = np.where(questions == NO_WORD, IGNORED, ids[:, :-1])
        return EpisodeBatch(
            WORDS,
            Lines(torch.from_numpy(ids[:, :-1].copy()), torch.from_numpy(ids[:, 1:].copy())),
            Lines(torch.from_numpy(masked), torch.from_numpy(targets)),
            torch.from_numpy(questions),
        )

    def _last(self, part: str) -> int:
        """The last place at which a stream can begin, were all its batches text."""
        return len(self.text.parts[part].ids) - self.length * self.batches - 1
