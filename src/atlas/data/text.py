"""A text of tokens as sequences, each token asked for the next one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atlas.errors import InputError
from atlas.memory.training.loop import Lines
from atlas.runs.seeds import generator


@dataclass(frozen=True)
class TextPart:
    """One part of a text.

    Attributes:
        ids: Its tokens [N].
        words: The number of the whole word that each belongs to, -1: none [N].
        size: Its bytes.
    """

    ids: NDArray[np.int64]
    words: NDArray[np.int64]
    size: int


@dataclass(frozen=True)
class TokenText:
    """A text in parts, `train`, `validation` and `test`, and the tokens it is made of.

    Attributes:
        parts: By name.
        vocabulary: How many tokens there are.
        tokenizer: What made them, to the bit.
    """

    parts: Mapping[str, TextPart]
    vocabulary: int
    tokenizer: str

    @property
    def identity(self) -> str:
        """The text and its tokens, to the bit."""
        digest = hashlib.sha256(self.tokenizer.encode())
        for part in self.parts.values():
            digest.update(part.ids.tobytes())
        return digest.hexdigest()

    def bytes_per_token(self, part: str) -> float:
        """How long its tokens are, on average."""
        return self.parts[part].size / len(self.parts[part].ids)

    def check(self, needed: int) -> None:
        """Refuse a text that has no room for one stretch of so many tokens in each part.

        Raises:
            InputError: It is too short.
        """
        shortest = min(len(part.ids) for part in self.parts.values())
        if shortest <= needed:
            raise InputError(
                f"task.length: {needed} tokens are read in one go; allowed: below {shortest}, the "
                "tokens in the smallest part of the text"
            )


@dataclass(frozen=True)
class TextLines:
    """Sequences of one text.

    Attributes:
        text: Its tokens.
        length: Tokens of a sequence.
        seed: Of the run.
    """

    text: TokenText
    length: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse a text that is too short."""
        self.text.check(self.length)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.text.vocabulary

    @property
    def identity(self) -> str:
        """The text, to the token."""
        return self.text.identity

    @property
    def chance(self) -> float:
        """The share of the test's tokens that are the commonest of training."""
        common = np.bincount(self.text.parts["train"].ids, minlength=self.vocabulary).argmax()
        return float((self.text.parts["test"].ids == common).mean())

    def training(self, step: int, count: int) -> Lines:
        """Sequences from anywhere in the part that is trained on."""
        draw = generator(self.seed, "text", "train", step)
        return self._at("train", draw.integers(self._last("train") + 1, size=count))

    def held_out(self, purpose: str, count: int) -> Lines:
        """Sequences spread evenly over a part, the same for every seed."""
        places = np.linspace(0, self._last(purpose), count)
        return self._at(purpose, places.astype(np.int64))

    def _last(self, part: str) -> int:
        """The last place at which a sequence can begin and every token have a next one."""
        return len(self.text.parts[part].ids) - self.length - 1

    def _at(self, part: str, starts: NDArray[np.int64]) -> Lines:
        places = starts[:, None] + np.arange(self.length + 1)
        found = torch.from_numpy(self.text.parts[part].ids[places])
        return Lines(found[:, :-1].contiguous(), found[:, 1:].contiguous())
