"""Text from a saved memory model: read a document, go on from prompts, keep what is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atlas.backbones.memory_lm.text import Sampling, TextReader
from atlas.errors import InputError
from atlas.jobs.memory.saved_model import SavedModel
from atlas.runs.events import Progress

__all__ = ["Sampling", "Writer", "open_reader", "open_writer", "read_text", "sampling"]


def sampling(
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = 0.95,
    seed: int = 0,
) -> Sampling:
    """How tokens are chosen.

    Raises:
        InputError: A number is out of range.
    """
    if temperature < 0:
        raise InputError(f"--temperature {temperature}; allowed: 0 (the likeliest token) or more")
    if top_k is not None and top_k < 1:
        raise InputError(f"--top-k {top_k}; allowed: 1 or more")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"--top-p {top_p}; allowed: above 0 and at most 1")
    return Sampling(temperature, top_k, top_p, seed)


def read_text(path: Path) -> str:
    """A text file as it is.

    Raises:
        InputError: It cannot be read, or is not text in UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8: byte {error.start}") from None


def open_reader(saved: SavedModel) -> TextReader:
    """The model as a reader of texts.

    Raises:
        InputError: Its tokens are no text, or it cannot be loaded.
    """
    saved.check_text()
    return TextReader.open(saved.place)


@dataclass
class Writer:
    """A model that writes on from prompt to prompt, with all that came before in its memory.

    Attributes:
        reader: The model, and what it remembers.
        saved: Where it comes from.
        how: How tokens are chosen.
        read: Tokens of documents and states that were taken in before the prompts.
        texts: What it wrote, by prompt.
    """

    reader: TextReader
    saved: SavedModel
    how: Sampling = field(default_factory=Sampling)
    read: int = 0
    texts: list[tuple[str, str]] = field(default_factory=list)

    def take_in(self, file: Path, progress: Progress | None = None) -> None:
        """Read a document into memory."""
        tokens = self.reader.encode(read_text(file))
        if not tokens:
            raise InputError(f"--read {file}: there is nothing in it")
        self.reader.read(tokens, progress)
        self.read = self.remembered

    def recall(self, file: Path) -> None:
        """Go on from what an earlier writer remembered."""
        self.reader.remember(file)
        self.read = self.remembered

    @property
    def remembered(self) -> int:
        """Tokens read so far, of documents, prompts and its own."""
        return self.reader.cache.get_seq_length()

    def answer(self, prompt: str, tokens: int) -> Iterator[str]:
        """What comes after a prompt, piece by piece; later prompts begin on a line of their own."""
        before = "\n" if self.texts else ""
        self.reader.read(self.reader.encode(before + prompt))
        made = []
        for piece in self.reader.write(tokens, self.how):
            made.append(piece)
            yield piece
        self.texts.append((prompt, "".join(made)))

    def facts(self) -> dict[str, Any]:
        """The last prompt and what came of it, as `--json` prints them."""
        prompt, text = self.texts[-1]
        return {
            "model": str(self.saved.place),
            "arm": self.saved.arm,
            "read": self.read,
            "prompt": prompt,
            "text": text,
            "remembered": self.remembered,
            "temperature": self.how.temperature,
            "top_k": self.how.top_k,
            "top_p": self.how.top_p,
            "seed": self.how.seed,
        }


def open_writer(saved: SavedModel, how: Sampling) -> Writer:
    """A saved model that is ready to write.

    Raises:
        InputError: Its tokens are no text, or it cannot be loaded.
    """
    return Writer(open_reader(saved), saved, how)
