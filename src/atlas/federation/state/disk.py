"""Tensors of very many clients on disk, of which only the clients asked for are in memory.

The state is a folder of generations, numbered. A generation is a folder with one raw file for every
tensor name, [n, ...] with the client as dimension 0, and `header.json`, which says what they hold.
Files are mapped to read and write some clients, and unmapped at once: what is resident is what was
asked for. A new generation is written beside the old one, synced, and renamed when it is whole, so
that a kill at any moment leaves the old one or the new one. The caller holds the run's lock.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.errors import InputError
from atlas.runs.files import sync_folder, write_synced

FORMAT = 1
HEADER = "header.json"
TEMPORARY = ".tmp-"
GENERATION = re.compile(r"[0-9]{6}")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}

Rows = slice | Sequence[int] | NDArray[np.int64]
"""Some clients, by position."""


@dataclass(frozen=True)
class Spec:
    """One tensor of the state: its shape without the clients, and its dtype by name."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Generation:
    """One whole state of all clients.

    Attributes:
        folder: Where its files are.
        clients: Ids, in the order of dimension 0.
        specs: What it holds, by name.
        facts: Plain values that belong to it.
    """

    folder: Path
    clients: tuple[str, ...]
    specs: Mapping[str, Spec]
    facts: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """What its tensors take on disk."""
        return sum(self._size(name) for name in self.specs)

    def read(self, name: str, rows: Rows) -> Tensor:
        """A copy of some clients' tensors [k, ...]."""
        return torch.from_numpy(np.array(self._mapped(name, "r")[rows]))

    def write(self, name: str, rows: Rows, values: Tensor) -> None:
        """Write some clients' tensors; only for a generation that is being made."""
        self._mapped(name, "r+")[rows] = values.detach().cpu().numpy()

    def path(self, name: str) -> Path:
        """The file of one tensor."""
        return self.folder / f"{sorted(self.specs).index(name):04d}.bin"

    def _mapped(self, name: str, mode: Any) -> Any:  # noqa: ANN401 - an array of any dtype
        spec = self.specs[name]
        shape = (len(self.clients), *spec.shape)
        return np.memmap(self.path(name), dtype=spec.dtype, mode=mode, shape=shape)

    def _size(self, name: str) -> int:
        spec = self.specs[name]
        return len(self.clients) * math.prod(spec.shape) * DTYPES[spec.dtype].itemsize

    def allocate(self) -> None:
        """Make the files at their full size, all zero.

        Room on the disk is taken at once where that can be done: a full disk is an error here, but
        ends the process when a mapped page finds no room later.
        """
        for name in self.specs:
            with self.path(name).open("xb") as file:
                file.truncate(self._size(name))
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self._size(name))

    def check(self) -> None:
        """Raise unless every file is there in full size."""
        for name in self.specs:
            path, wanted = self.path(name), self._size(name)
            found = path.stat().st_size if path.is_file() else None
            if found != wanted:
                held = "is missing" if found is None else f"has {found} bytes"
                raise InputError(f"{path}: {name} {held}; expected {wanted} bytes")


class DiskState:
    """A folder of generations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def renew(
        self, clients: Sequence[str], specs: Mapping[str, Spec], facts: Mapping[str, Any]
    ) -> Iterator[Generation]:
        """A new generation, all zero, to be filled; at the end it takes the last one's place.

        If filling it fails, nothing of it is left and the last one stays.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(f"{TEMPORARY}*"):  # by a process that was killed
            shutil.rmtree(left)
        made = Generation(self.folder / f"{TEMPORARY}new", tuple(clients), dict(specs), dict(facts))
        made.folder.mkdir()
        try:
            made.allocate()
            yield made
            self._finish(made)
        except BaseException:
            shutil.rmtree(made.folder, ignore_errors=True)
            raise

    def _finish(self, made: Generation) -> None:
        """Sync a new generation and put it in place of the last one, which is removed."""
        for name in made.specs:
            _sync(made.path(name))
        write_synced(made.folder / HEADER, json.dumps(_plain(made)).encode("utf-8"))
        sync_folder(made.folder)
        older = self._numbers()
        made.folder.rename(self.folder / f"{max(older, default=0) + 1:06d}")
        sync_folder(self.folder)
        for number in older:
            shutil.rmtree(self.folder / f"{number:06d}")

    def latest(self) -> Generation:
        """The last whole generation.

        Raises:
            InputError: There is none, or it is damaged. Nothing is removed.
        """
        numbers = self._numbers()
        if not numbers:
            raise InputError(f"{self.folder}: no state of clients here")
        found = _read_header(self.folder / f"{max(numbers):06d}")
        found.check()
        return found

    def _numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return [int(p.name) for p in self.folder.iterdir() if GENERATION.fullmatch(p.name)]


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _plain(made: Generation) -> dict[str, Any]:
    specs = {name: {"shape": list(s.shape), "dtype": s.dtype} for name, s in made.specs.items()}
    return {"format": FORMAT, "clients": made.clients, "tensors": specs, "facts": made.facts}


def _read_header(folder: Path) -> Generation:
    path = folder / HEADER
    try:
        header = json.loads(path.read_bytes())
        if header["format"] != FORMAT:
            raise InputError(f"{path}: format {header['format']!r}; allowed: {FORMAT}")
        specs = {name: _read_spec(path, name, told) for name, told in header["tensors"].items()}
        clients = tuple(str(client) for client in header["clients"])
        return Generation(folder, clients, specs, dict(header["facts"]))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not the header of a state ({type(error).__name__})") from None


def _read_spec(path: Path, name: str, told: Mapping[str, Any]) -> Spec:
    shape, dtype = tuple(told["shape"]), told["dtype"]
    if dtype not in DTYPES:
        raise InputError(f"{path}: {name} has dtype {dtype!r}; allowed: {', '.join(DTYPES)}")
    if not all(type(size) is int and size > 0 for size in shape):
        raise InputError(f"{path}: {name} has shape {list(shape)}; allowed: whole numbers above 0")
    return Spec(shape, dtype)
