"""Words of a text behind masks: whole ones, at random places, never special tokens or padding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Grid = NDArray[np.int64]
NO_WORD = -1


def whole_words(words: Grid) -> Grid:
    """Word numbers of sequences without the words that their edges cut in two.

    Args:
        words: Of the sequences and of one token before and after each, NO_WORD where there is
            none [B, T + 2].

    Returns:
        [B, T].
    """
    inner = words[:, 1:-1].copy()
    for edge in (words[:, :1], words[:, -1:]):
        inner[(inner == edge) & (edge != NO_WORD)] = NO_WORD
    return inner


def mask_words(
    ids: Grid, words: Grid, share: float, mask: int, draw: np.random.Generator
) -> tuple[Grid, Grid]:
    """Hide some words of every sequence, at least one where there is a word.

    Every token of a word that is hidden becomes a mask, so that no input holds what is asked for.

    Args:
        ids: The sequences [B, T].
        words: Which word each token belongs to; NO_WORD is never hidden [B, T].
        share: Of the words of each sequence.
        mask: The token that stands for a hidden one.
        draw: Decides which.

    Returns:
        The sequences with masks, and the question that each mask belongs to, counted over all
        sequences, -1 elsewhere; both [B, T].
    """
    masked, questions, asked = ids.copy(), np.full_like(ids, NO_WORD), 0
    for row, own in enumerate(words):
        there = np.unique(own[own != NO_WORD])
        if not len(there):
            continue
        count = max(1, round(share * len(there)))
        for word in np.sort(draw.permutation(there)[:count]):
            hidden = own == word
            masked[row, hidden] = mask
            questions[row, hidden] = asked
            asked += 1
    return masked, questions


def commonest_share(learned: tuple[Grid, Grid], asked: tuple[Grid, Grid]) -> float:
    """Share of the words of one text that are the commonest word of another.

    Args:
        learned: Tokens and word numbers of the text that the commonest word is taken from [N].
        asked: Those of the other one.
    """
    spelled = _spelled(*learned)
    if not spelled:
        return 0.0
    counts: dict[tuple[int, ...], int] = {}
    for word in spelled:
        counts[word] = counts.get(word, 0) + 1
    common = max(counts, key=lambda word: counts[word])
    others = _spelled(*asked)
    return sum(word == common for word in others) / len(others) if others else 0.0


def _spelled(ids: Grid, words: Grid) -> list[tuple[int, ...]]:
    """Every word as its tokens, in order."""
    inside = words != NO_WORD
    tokens, numbers = ids[inside], words[inside]
    ends = np.flatnonzero(np.diff(numbers)) + 1
    return [tuple(word.tolist()) for word in np.split(tokens, ends)] if len(tokens) else []
