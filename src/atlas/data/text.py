"""A plain text file as sequences of bytes, each asked for the next one.

Its first nine tenths are trained on; validation and test have a twentieth each, in this order, so
that what is asked for was never seen.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from atlas.errors import InputError
from atlas.memory.training.loop import Lines
from atlas.runs.seeds import generator

BYTES = 256
PARTS = {"train": (0.0, 0.9), "validation": (0.9, 0.95), "test": (0.95, 1.0)}


class TextLines:
    """Sequences of one text.

    Attributes:
        length: Tokens of a sequence.
        seed: Of the run.
    """

    vocabulary = BYTES

    def __init__(self, path: Path, length: int, seed: int) -> None:
        """Read a file.

        Raises:
            InputError: It cannot be read, or a part of it is shorter than a sequence.
        """
        try:
            read = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        except OSError as error:
            raise InputError(
                f"task.file: {path}: {error.strerror}; give a text file, or set ATLAS_DATA to a "
                "folder that holds it"
            ) from None
        cuts = {name: [round(share * len(read)) for share in part] for name, part in PARTS.items()}
        self.length, self.seed = length, seed
        self._parts = {name: read[start:stop] for name, (start, stop) in cuts.items()}
        shortest = min(map(len, self._parts.values()))
        if shortest <= length:
            raise InputError(
                f"task.length: {length}; allowed: below {shortest}, the bytes in the smallest part "
                f"of {path}"
            )

    @property
    def identity(self) -> str:
        """The text, to the byte."""
        return hashlib.sha256(b"".join(part.tobytes() for part in self._parts.values())).hexdigest()

    @property
    def chance(self) -> float:
        """The share of the test's bytes that are the commonest of training."""
        common = np.bincount(self._parts["train"], minlength=BYTES).argmax()
        return float((self._parts["test"] == common).mean())

    def training(self, step: int, count: int) -> Lines:
        """Sequences from anywhere in the part that is trained on."""
        draw = generator(self.seed, "text", "train", step)
        return self._at("train", draw.integers(self._last("train") + 1, size=count))

    def held_out(self, purpose: str, count: int) -> Lines:
        """Sequences spread evenly over a part, the same for every seed."""
        places = np.linspace(0, self._last(purpose), count)
        return self._at(purpose, places.astype(np.int64))

    def _last(self, part: str) -> int:
        """The last place at which a sequence can begin and every byte have a next one."""
        return len(self._parts[part]) - self.length - 1

    def _at(self, part: str, starts: NDArray[np.int64]) -> Lines:
        places = starts[:, None] + np.arange(self.length + 1)
        found = torch.from_numpy(self._parts[part][places].astype(np.int64))
        return Lines(found[:, :-1].contiguous(), found[:, 1:].contiguous())
