"""Tokens of running text, and which word each belongs to."""

import re
import subprocess
import sys

import numpy as np
import pytest
from transformers import AutoTokenizer

from atlas.backbones.text_tokens import (
    NO_WORD,
    byte_tokens,
    folder_tokens,
    train_tokens,
    with_special_tokens,
    word_numbers,
)
from atlas.errors import InputError

TEXT = "To be, or not to be: that's the question of the old man and the sea.\n" * 30
SYMBOLS = ["<|0|>", "<|1|>", "<|+|>", "<|=|>"]


def made(kind="trained", text=TEXT):
    makers = {"trained": lambda: train_tokens(text, 285), "bytes": byte_tokens}
    return with_special_tokens(makers[kind](), SYMBOLS)


def naive_numbers(text, offsets, spans):
    """Character by character, token by token, word by word."""
    owner = [NO_WORD] * len(text)
    for number, (begin, end) in enumerate(spans):
        for i in range(begin, end):
            owner[i] = number
    found, torn = [], set()
    for begin, end in offsets:
        own = {owner[i] for i in range(begin, end)} - {NO_WORD}
        others = any(owner[i] == NO_WORD and not text[i].isspace() for i in range(begin, end))
        if len(own) == 1 and not others:
            found.append(own.pop())
        else:
            found.append(NO_WORD)
            torn |= own
    return [NO_WORD if number in torn else number for number in found]


def test_words_of_tokens_are_those_of_the_plain_way():
    draw = np.random.default_rng(0)
    letters = list("ab  .,'\n")
    for _ in range(60):
        text = "".join(draw.choice(letters, size=37))
        spans = [m.span() for m in re.finditer(r"\w+(?:'\w+)*", text)]
        cuts = np.unique(draw.integers(0, 38, size=14)).tolist()
        offsets = list(zip(cuts[:-1], cuts[1:], strict=True))
        offsets += [offsets[-1], (cuts[0], cuts[0])]  # several tokens of one letter; an empty one
        assert word_numbers(text, offsets, spans).tolist() == naive_numbers(text, offsets, spans)


@pytest.mark.parametrize("kind", ["trained", "bytes"])
def test_whole_words_come_back_from_their_tokens(kind):
    tokens = made(kind)
    read = tokens.read(TEXT)
    assert tokens.tokenizer.decode(read.ids.tolist()) == TEXT and read.size == len(TEXT)
    words = [
        tokens.tokenizer.decode(read.ids[read.words == number].tolist()).strip()
        for number in range(10)
    ]
    assert words == ["To", "be", "or", "not", "to", "be", "that's", "the", "question", "of"]
    assert not set(read.ids.tolist()) & tokens.special


def test_bytes_are_their_values():
    tokens = made("bytes")
    assert tokens.read("é’s <|0|>").ids.tolist() == list("é’s <|0|>".encode())
    assert tokens.size == 256 + 2 + len(SYMBOLS)


@pytest.mark.parametrize("kind", ["trained", "bytes"])
def test_text_that_is_spelled_like_a_special_token_is_text(kind):
    tokens = made(kind)
    read = tokens.read("a <|mask|> <|1|> b")
    assert not set(read.ids.tolist()) & tokens.special
    assert tokens.tokenizer("<|1|>")["input_ids"] == [tokens.arithmetic[1]]


def test_a_trained_tokenizer_is_the_same_in_another_process():
    code = (
        "from tests.backbones.test_text_tokens import made; print(made().identity)"
    )  # fmt: skip
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == made().identity
    assert made(text=TEXT + "another zebra " * 50).identity != made().identity


def test_a_saved_tokenizer_is_read_back_by_the_library(tmp_path):
    tokens = made()
    tokens.save(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(TEXT)["input_ids"] == tokens.read(TEXT).ids.tolist()
    assert (again.mask_token_id, again.pad_token_id) == (tokens.mask, tokens.pad)
    other = with_special_tokens(folder_tokens(tmp_path), ["<|9|>"])
    assert other.mask == tokens.mask, "a mask of its own stays"
    assert other.size == tokens.size + 1


def test_what_cannot_be_had_is_refused(tmp_path):
    with pytest.raises(InputError, match="task.tokenizer.size: 200; allowed: above 256"):
        train_tokens(TEXT, 200)
    with pytest.raises(InputError, match=r"task.tokenizer.size: 9999; allowed: up to \d+"):
        train_tokens(TEXT, 9999)
    with pytest.raises(InputError, match="no such folder"):
        folder_tokens(tmp_path / "none")
    with pytest.raises(InputError, match="has a token <|0|> already"):
        with_special_tokens(made().tokenizer, ["<|0|>"])
