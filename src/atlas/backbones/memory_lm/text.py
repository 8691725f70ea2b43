"""A saved Atlas model and its tokenizer: texts in, texts out, and what is remembered in between.

What a reader remembers is one value, an `AtlasCache`. Reading goes on from it piece by piece, and
tokens are made one at a time from it, so a text that was read in pieces, or written by the model
itself, is the same text to it as one read at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import cross_entropy

from atlas.backbones.blocks import Tokenizer
from atlas.backbones.memory_lm.cache import AtlasCache
from atlas.backbones.memory_lm.heads import AtlasForCausalLM
from atlas.backbones.read_model import UNREADABLE, quiet_library
from atlas.backbones.tokenizer import encode, load_tokenizer
from atlas.errors import InputError
from atlas.ops.sampling import next_shares, pick
from atlas.runs.events import Progress
from atlas.runs.seeds import generator

PIECE = 512
"""Tokens that are read at once; what comes of them does not depend on it."""
CUT = "\ufffd"
"""What a decoder gives for a letter of which some bytes are still to come."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; a temperature of zero takes the likeliest.

    Attributes:
        seed: Every draw follows it and the token's place in the text.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = 0.95
    seed: int = 0


GREEDY = Sampling(temperature=0.0, top_k=None, top_p=None)


class TextScore(NamedTuple):
    """How well a text was foreseen, token by token.

    Attributes:
        tokens: Those that were foreseen: all but the first.
        bytes: What they stand for.
        loss: Mean of minus the log of the right token's share.
        perplexity: exp of the loss: among so many tokens a guess would do as well.
        bits_per_byte: The loss of all tokens in bits, over the bytes, whatever the tokenizer.
        accuracy: Share of tokens that were the likeliest.
    """

    tokens: int
    bytes: int
    loss: float
    perplexity: float
    bits_per_byte: float
    accuracy: float


@dataclass
class TextReader:
    """A model that has read some text, and goes on from there.

    Attributes:
        model: Gives logits and the state.
        tokenizer: Makes tokens of texts.
        cache: What it remembers of all that was read.
        logits: Of the next token [V]; None while nothing was read.
    """

    model: AtlasForCausalLM
    tokenizer: Tokenizer
    cache: AtlasCache = field(default_factory=AtlasCache)
    logits: Tensor | None = None

    @classmethod
    def open(cls, folder: Path) -> TextReader:
        """A saved model that has read nothing.

        Raises:
            InputError: It cannot be loaded, or its tokens are no text.
        """
        try:
            with quiet_library():
                model = AtlasForCausalLM.from_pretrained(folder, local_files_only=True)
                return cls(model.eval(), load_tokenizer(folder))
        except InputError:
            raise
        except UNREADABLE as error:
            raise InputError(f"{folder}: cannot be loaded: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; at the very start, behind the start token if there is one."""
        start = self.tokenizer.bos_token_id
        begins = start is not None and not self.cache.get_seq_length()
        found = encode(self.tokenizer, [text])[0]
        return [start, *found] if begins else found

    def read(self, tokens: Sequence[int], progress: Progress | None = None) -> None:
        """Take in some tokens, however many."""
        done = 0
        for logits in self._pieces(tokens):
            self.logits, done = logits[-1], done + len(logits)
            if progress is not None:
                progress("reading", done, len(tokens))

    @torch.no_grad()
    def _pieces(self, tokens: Sequence[int]) -> Iterator[Tensor]:
        """Logits after each token, [T, V], piece by piece; the state moves along."""
        for start in range(0, len(tokens), PIECE):
            ids = torch.tensor([tokens[start : start + PIECE]], device=self.model.device)
            out = self.model(input_ids=ids, past_key_values=self.cache)
            self.cache = out.past_key_values
            yield out.logits[0]

    def likeliest(self, count: int) -> list[tuple[str, float]]:
        """The tokens most likely to come next, as text, and their shares."""
        shares = next_shares(self._next(), 1.0)
        best = shares.topk(min(count, len(shares)))
        told = self.tokenizer.convert_ids_to_tokens(best.indices.tolist())
        texts = [self.tokenizer.convert_tokens_to_string([token]) for token in told]
        return list(zip(texts, best.values.tolist(), strict=True))

    def write(self, count: int, how: Sampling) -> Iterator[str]:
        """Text that goes on from what was read, piece by piece, of `count` tokens at most.

        Each token is read as it is made, so that whatever comes next goes on from it.
        """
        made: list[int] = []
        shown = ""
        for _ in range(count):
            shares = next_shares(self._next(), how.temperature, how.top_k, how.top_p)
            draw = generator(how.seed, "generate", self.cache.get_seq_length())
            token = pick(shares, float(draw.random()))
            self.read([token])
            if token == self.tokenizer.eos_token_id:
                break
            made.append(token)
            text = self.tokenizer.decode(made)
            if not text.endswith(CUT):
                yield text[len(shown) :]
                shown = text
        rest = self.tokenizer.decode(made)[len(shown) :]
        if rest:
            yield rest

    def _next(self) -> Tensor:
        """Logits of the next token, without those that no text has."""
        if self.logits is None:
            raise InputError("nothing to go on from: give a prompt, or a text to read first")
        logits = self.logits.clone()
        never = [i for i in self.tokenizer.all_special_ids if i != self.tokenizer.eos_token_id]
        logits[never] = -math.inf
        logits[len(self.tokenizer) :] = -math.inf
        return logits

    def score(self, text: str, progress: Progress | None = None) -> TextScore:
        """Read a text and tell how well it was foreseen.

        Raises:
            InputError: It is too short for anything to be foreseen.
        """
        tokens = self.encode(text)
        if len(tokens) < 2:
            raise InputError(f"{len(tokens)} tokens of text; allowed: at least 2")
        loss, right, done = 0.0, 0, 0
        for logits in self._pieces(tokens[:-1]):
            wanted = torch.tensor(tokens[done + 1 : done + 1 + len(logits)], device=logits.device)
            loss += float(cross_entropy(logits.double(), wanted, reduction="sum"))
            right += int((logits.argmax(-1) == wanted).sum())
            done += len(logits)
            if progress is not None:
                progress("reading", done, len(tokens) - 1)
        size, mean = len(text.encode()) - self._bytes_of(tokens[0]), loss / done
        return TextScore(
            tokens=done,
            bytes=size,
            loss=mean,
            perplexity=math.exp(mean),
            bits_per_byte=loss / math.log(2) / size,
            accuracy=right / done,
        )

    def _bytes_of(self, token: int) -> int:
        text: str = self.tokenizer.decode([token], skip_special_tokens=True)
        # Of a part of a letter the tokenizer's own name has a sign for each byte.
        spelled: str = self.tokenizer.convert_ids_to_tokens(token)
        return len(spelled) if CUT in text else len(text.encode())

    def save(self, path: Path) -> None:
        """Write what is remembered, as a safetensors file."""
        self.cache.save(path)

    def remember(self, path: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            InputError: It cannot be read, or another model wrote it.
        """
        try:
            self.cache, self.logits = AtlasCache.load(path, self.model), None
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise InputError(f"{path}: not what this model remembered: {error}") from error
