"""What a memory run reads, made of its settings: text and its tokens, sums, recall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from atlas.backbones.text_tokens import (
    TextTokens,
    byte_tokens,
    folder_tokens,
    train_tokens,
    with_special_tokens,
)
from atlas.config.memory import MemoryConfig
from atlas.config.memory_task import SequenceSettings, TokenizerSettings
from atlas.data.arithmetic import ArithmeticTask
from atlas.data.episodes import EpisodeStreams
from atlas.data.recall import RecallLines, RecallTask
from atlas.data.sums import SumLines, TextAndSums, symbols
from atlas.data.text import TextLines, TextPart, TokenText
from atlas.data.text_source import read_text, split_text

VOCABULARY, PAIRS = 64, 8
"""Of recall, where the settings name none."""
TOKENIZER_SIZE = 1024
"""Of a tokenizer that is trained, likewise."""


class Sequences(Protocol):
    """What is trained on and tested with; equal arguments give equal ones.

    That is `Lines`, or an `Episode` where the objective is one.
    """

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def identity(self) -> str:
        """What is read, to the bit: a run goes on with nothing else."""
        ...

    @property
    def chance(self) -> float:
        """Share of right answers without reading: a guess, or always the commonest."""
        ...

    def training(self, step: int, count: int) -> Any:  # noqa: ANN401
        """What is trained on at a step."""
        ...

    def held_out(self, purpose: str, count: int) -> Any:  # noqa: ANN401
        """What nothing is trained on."""
        ...


@dataclass(frozen=True)
class Reading:
    """All that a run reads.

    Attributes:
        sequences: What its steps and tests are made of.
        text: The text alone, for its loss; None where there is none.
        sums: The sums; None where there are none.
        tokens: The tokenizer; None where there is no text.
    """

    sequences: Sequences
    text: TextLines | None = None
    sums: SumLines | None = None
    tokens: TextTokens | None = None


def build_reading(config: MemoryConfig) -> Reading:
    """Read the text, train its tokenizer if that is wanted, and draw up the sequences.

    Raises:
        InputError: The text or the tokenizer cannot be had, or the task cannot be drawn.
    """
    task = config.task
    if task.name == "recall":
        own = RecallTask(task.vocabulary or VOCABULARY, task.length, task.pairs or PAIRS)
        return Reading(RecallLines(own, config.seed))
    pieces = split_text(read_text(task))
    names = [] if task.arithmetic is None else symbols(task.arithmetic.modulus)
    tokens = build_tokens(task.tokenizer or TokenizerSettings(), pieces["train"], names)
    text = TokenText(
        {name: _part(tokens, piece) for name, piece in pieces.items()},
        tokens.size,
        tokens.identity,
    )
    sums = build_sums(task, tokens, config.seed)
    return Reading(_sequences(config, text, sums, tokens), _lines(config, text), sums, tokens)


def build_tokens(settings: TokenizerSettings, text: str, arithmetic: list[str]) -> TextTokens:
    """The tokenizer of a run, with all its special tokens."""
    if settings.kind == "trained":
        tokenizer = train_tokens(text, settings.size or TOKENIZER_SIZE)
    elif settings.folder is not None:
        tokenizer = folder_tokens(settings.folder)
    else:
        tokenizer = byte_tokens()
    return with_special_tokens(tokenizer, arithmetic)


def build_sums(task: SequenceSettings, tokens: TextTokens, seed: int) -> SumLines | None:
    """The sums of a task; None where it has none."""
    own = task.arithmetic
    if own is None:
        return None
    asked = ArithmeticTask(own.modulus, tuple(own.operations), own.fraction, seed)
    return SumLines(asked, tokens.arithmetic, tokens.mask, task.length)


def _part(tokens: TextTokens, piece: str) -> TextPart:
    found = tokens.read(piece)
    return TextPart(found.ids, found.words, found.size)


def _lines(config: MemoryConfig, text: TokenText) -> TextLines:
    return TextLines(text, config.task.length, config.seed)


def _sequences(
    config: MemoryConfig, text: TokenText, sums: SumLines | None, tokens: TextTokens
) -> Sequences:
    own = config.task.arithmetic
    share = 0.0 if own is None else own.share
    if config.objective == "episodes":
        return EpisodeStreams(
            text=text,
            sums=sums,
            share=share,
            length=config.task.length,
            batches=config.episodes.batches,
            masked=config.episodes.masked,
            mask=tokens.mask,
            seed=config.seed,
        )
    lines = _lines(config, text)
    return lines if sums is None else TextAndSums(lines, sums, share)
