"""Use a memory run's finished model: what it expects next, how well it foresees a file, export."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from atlas.backbones.memory_lm.exported import complete_folder
from atlas.backbones.memory_lm.text import GREEDY
from atlas.jobs.memory.generate import open_reader, read_text
from atlas.jobs.memory.saved_model import SavedModel
from atlas.runs.events import Progress
from atlas.runs.files import fresh_target

LIKELIEST = 5
"""Tokens that are told as the next ones."""
CONTINUED = 32
"""Tokens of the likeliest continuation."""


def predict_next(saved: SavedModel, text: str, progress: Progress | None = None) -> dict[str, Any]:
    """The likeliest next tokens after a text, and the likeliest continuation.

    Raises:
        InputError: The model's tokens are no text, or it cannot be loaded.
    """
    reader = open_reader(saved)
    reader.read(reader.encode(text), progress)
    likely = reader.likeliest(LIKELIEST)
    return {
        "model": str(saved.place),
        "arm": saved.arm,
        "text": text,
        "next": [{"token": token, "share": share} for token, share in likely],
        "answer": "".join(reader.write(CONTINUED, GREEDY)),
    }


def score_file(saved: SavedModel, file: Path, progress: Progress | None = None) -> dict[str, Any]:
    """How well a model foresees a text file, read from its start to its end as one text.

    Raises:
        InputError: The model's tokens are no text, or the file cannot be read.
    """
    text = read_text(file)
    reader = open_reader(saved)
    facts = {"model": str(saved.place), "arm": saved.arm, "file": str(file)}
    return facts | reader.score(text, progress)._asdict()


def export_model(saved: SavedModel, to: Path) -> None:
    """Copy a model into a folder that transformers loads; nothing that exists is overwritten.

    Raises:
        InputError: The folder exists already, or cannot be written.
    """
    with fresh_target(to):
        shutil.copytree(saved.place, to)
        complete_folder(to)
