"""Running text: of a file, of the hub as a stream, or generated here.

Nine tenths of a text are trained on; validation and test have a twentieth each, in this order, so
that what is asked for was never seen.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from atlas.config.memory_task import HubTextSettings, SequenceSettings
from atlas.data.anchors import anchor_texts
from atlas.errors import InputError

PARTS = {"train": (0.0, 0.9), "validation": (0.9, 0.95), "test": (0.95, 1.0)}
CHARACTERS = 1_000_000
SEED = 0
"""Of the generated text: like a file, it is the same for every run."""
BATCH = 1000
"""Generated texts that are drawn at a time."""


def read_text(task: SequenceSettings) -> str:
    """The text that a task names.

    Raises:
        InputError: It cannot be had.
    """
    if task.file is not None:
        return read_text_file(task.file)
    characters = task.characters or CHARACTERS
    if task.hub is not None:
        return hub_text(task.hub, characters)
    return generated_text(characters)


def split_text(text: str) -> dict[str, str]:
    """The parts that are trained on, validated with and tested with."""
    cuts = {name: [round(share * len(text)) for share in part] for name, part in PARTS.items()}
    return {name: text[start:stop] for name, (start, stop) in cuts.items()}


def read_text_file(path: Path) -> str:
    """A file of text in UTF-8.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(
            f"task.file: {path}: {error.strerror}; give a text file, or set ATLAS_DATA to a "
            "folder that holds it"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"task.file: {path}: not text in UTF-8 (byte {error.start}); allowed: UTF-8"
        ) from None


def generated_text(characters: int) -> str:
    """Sentences made of the words of the synthetic tasks, one text a line, all of them different.

    Raises:
        InputError: So many different ones cannot be made.
    """
    for batches in count(1):
        text = "\n".join(anchor_texts(batches * BATCH, SEED))
        if len(text) >= characters:
            return text[:characters]
    raise AssertionError


def hub_text(hub: HubTextSettings, characters: int) -> str:
    """The first texts of a data set, read as a stream, with an empty line in between.

    Raises:
        InputError: The library, the data set, the split or the field is missing.
    """
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            "task.hub needs the datasets library: pip install atlas-personal[hub]"
        ) from error
    load: Callable[..., object] = datasets.load_dataset
    found, size = list[str](), 0
    try:
        for row in load(hub.name, hub.config, split=hub.split, streaming=True):  # type: ignore[attr-defined]
            if not isinstance(row.get(hub.field), str):
                raise InputError(
                    f"task.hub.field: {hub.field}; {hub.name} has {', '.join(sorted(row))}"
                )
            found.append(row[hub.field])
            size += len(row[hub.field]) + 2
            if size >= characters:
                break
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise InputError(
            f"task.hub.name: {hub.name}: cannot be read ({type(error).__name__}: {error})"
        ) from error
    return "\n\n".join(found)[:characters]
