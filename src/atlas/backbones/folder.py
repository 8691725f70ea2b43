"""Model folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from atlas.errors import InputError
from atlas.runs.files import FILE_MODE, sync_folder

MARKER = "atlas.json"


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` once it is filled.

    An earlier export is replaced; any other folder that holds something is left alone.

    Args:
        folder: Where the files are to be in the end.

    Yields:
        The folder to write into.

    Raises:
        InputError: If `folder` holds something else than an earlier export.
    """
    if folder.exists() and not _replaceable(folder):
        raise InputError(f"{folder} holds other files; choose a new or empty folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    stale = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    for left in (fresh, stale):
        shutil.rmtree(left, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        _seal(fresh)
        if folder.exists():
            folder.rename(stale)
        fresh.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(stale, ignore_errors=True)


def _replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / MARKER).is_file() or not any(folder.iterdir()))


def _seal(folder: Path) -> None:
    """Makes the files readable (safetensors writes them as private) and puts them on disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(FILE_MODE)
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)
