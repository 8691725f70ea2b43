"""Tokens of running text: a tokenizer trained here, one from a folder, or bytes.

All three are fast tokenizers of transformers, so a model's folder holds its tokenizer in the
library's own format. Each is given a mask, a token of padding and, for sums, one token for every
residue, operation and the equals sign. These are special: text that happens to be spelled like one
is still read as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from atlas.backbones.blocks import Tokenizer
from atlas.backbones.read_model import quiet_library
from atlas.backbones.tokenizer import load_tokenizer, plain_bytes, tokenizer_identity
from atlas.errors import InputError

MASK, PAD = "<|mask|>", "<|pad|>"
BYTES = 256
WORD = re.compile(r"\w+(?:['’]\w+)*")
"""A word: letters and digits, also with apostrophes inside."""
NO_WORD = -1
PIECE = 1 << 16
"""Characters that are given to the tokenizer at a time, up to the end of a line."""


@dataclass(frozen=True)
class TokenizedText:
    """A text as tokens.

    Attributes:
        ids: [N].
        words: Number of the word that each token belongs to; NO_WORD where it belongs to none or
            to more than one, or to only a part of one [N].
        size: Bytes of the text.
    """

    ids: NDArray[np.int64]
    words: NDArray[np.int64]
    size: int


@dataclass(frozen=True)
class TextTokens:
    """A tokenizer with a mask, padding and the tokens of sums.

    Attributes:
        tokenizer: As transformers has it.
        arithmetic: Ids of the tokens of sums, in the order they were asked for.
    """

    tokenizer: Tokenizer
    arithmetic: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return len(self.tokenizer)

    @property
    def mask(self) -> int:
        """The id of the mask."""
        return int(self.tokenizer.mask_token_id)

    @property
    def pad(self) -> int:
        """The id of padding."""
        return int(self.tokenizer.pad_token_id)

    @property
    def special(self) -> frozenset[int]:
        """Tokens that no text is made of."""
        return frozenset(int(i) for i in self.tokenizer.all_special_ids) | set(self.arithmetic)

    @property
    def identity(self) -> str:
        """Equal for equal tokenizers."""
        return tokenizer_identity(self.tokenizer)

    def read(self, text: str) -> TokenizedText:
        """Tokens of a text, and which word each is of."""
        backend, ids, words, before = self.tokenizer.backend_tokenizer, [], [], 0
        backend.encode_special_tokens = True  # Only here: text is text, however it is spelled.
        try:
            for piece in _pieces(text):
                found = backend.encode(piece, add_special_tokens=False)
                spans = [match.span() for match in WORD.finditer(piece)]
                numbers = word_numbers(piece, found.offsets, spans)
                ids += found.ids
                words.append(np.where(numbers == NO_WORD, NO_WORD, numbers + before))
                before += len(spans)
        finally:
            backend.encode_special_tokens = False
        every = np.concatenate(words) if words else np.zeros(0, dtype=np.int64)
        return TokenizedText(np.array(ids, dtype=np.int64), every, len(text.encode()))

    def save(self, place: Path) -> None:
        """Write it beside a model, where `AutoTokenizer.from_pretrained` finds it."""
        with quiet_library():
            self.tokenizer.save_pretrained(place)


def word_numbers(
    text: str, offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> NDArray[np.int64]:
    """The word of every token, NO_WORD where a mask would hide more or less than whole words.

    A token counts to a word if nothing but spaces lies in it beside the word's own letters; a word
    one of whose tokens does not has no tokens at all.

    Args:
        text: What was tokenized.
        offsets: Where each token begins and ends.
        spans: Where each word does, rising.
    """
    letters, begun = np.zeros(len(text), dtype=np.int64), np.zeros(len(text), dtype=np.int64)
    for begin, end in spans:
        letters[begin:end] = 1
        begun[begin] = 1
    spaces = np.fromiter(map(str.isspace, text), dtype=np.int64, count=len(text))
    others = _running((1 - letters) * (1 - spaces))
    begins, ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    words, inside = _running(begun), np.append(letters * (1 - begun), 0)[begins]
    # A token's words are those that begin in it, and the one that it begins within.
    first, last = words[begins] - inside * (ends > begins), words[ends]
    clean = (last - first == 1) & (others[ends] == others[begins])
    found = np.where(clean, last - 1, NO_WORD)
    torn = [np.arange(*pair) for pair in zip(first[~clean], last[~clean], strict=True)]
    if torn:
        found[np.isin(found, np.concatenate(torn))] = NO_WORD
    return found


def _running(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of all before each place, and of all."""
    return np.concatenate([[0], np.cumsum(counts)])


def byte_tokens() -> Tokenizer:
    """Every byte is a token, whose id is its value."""
    return plain_bytes()


def train_tokens(text: str, size: int) -> Tokenizer:
    """Byte pairs of a text, joined until there are `size` tokens; equal texts give equal ones.

    Raises:
        InputError: There are more bytes than tokens, or the text is too short for so many.
    """
    if size <= BYTES:
        raise InputError(f"task.tokenizer.size: {size}; allowed: above {BYTES}, the single bytes")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    backend.train_from_iterator(_pieces(text), trainer)
    if backend.get_vocab_size() < size:
        raise InputError(
            f"task.tokenizer.size: {size}; allowed: up to {backend.get_vocab_size()}, as the text "
            "has no more pairs to join"
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


def folder_tokens(place: Path) -> Tokenizer:
    """The tokenizer of a transformers folder.

    Raises:
        InputError: There is none that can say where in a text its tokens are.
    """
    if not place.is_dir():
        raise InputError(f"task.tokenizer.folder: {place}: no such folder")
    return load_tokenizer(place)


def with_special_tokens(tokenizer: Tokenizer, arithmetic: Sequence[str]) -> TextTokens:
    """The tokenizer with what episodes need; a mask or padding of its own stays.

    Args:
        tokenizer: Changed in place.
        arithmetic: What the tokens of sums are called.

    Raises:
        InputError: The tokenizer knows one of these names as a token of text.
    """
    own = {}
    if tokenizer.mask_token is None:
        own["mask_token"] = AddedToken(MASK, special=True)
    if tokenizer.pad_token is None:
        own["pad_token"] = AddedToken(PAD, special=True)
    if own:
        tokenizer.add_special_tokens(own)
    known = tokenizer.get_vocab()
    taken = [name for name in arithmetic if name in known]
    if taken:
        raise InputError(f"task.tokenizer: it has a token {taken[0]} already, which sums need")
    tokenizer.add_tokens([AddedToken(name, special=True) for name in arithmetic])
    ids = tokenizer.convert_tokens_to_ids(list(arithmetic)) if arithmetic else []
    return TextTokens(tokenizer, tuple(ids))


def _pieces(text: str) -> Iterator[str]:
    """The text in parts that end where lines do, so that no word is cut."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + PIECE)
        end = len(text) if end < 0 else end
        yield text[begin:end]
        begin = end
