"""Rows of numbers that only ever grow: in memory up to a budget, then in a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np
import torch
from torch import Tensor

from atlas.errors import InputError

FOLDER = "ATLAS_CACHE"
"""The environment variable that names the folder of the file."""


class SpillingRows:
    """Rows [*, width] by address.

    The file is read and written, not mapped: the system keeps its pages as long as it has room, and
    they never count as ours.

    Attributes:
        spills: Whether all rows move to the file when memory does not suffice, so that they are
            read from one place; on an accelerator those in its memory stay there.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device, budget: int) -> None:
        """No rows yet.

        Args:
            width: Numbers in a row.
            dtype: Of the numbers.
            device: Where rows in memory are, and where `take` puts what it finds.
            budget: Bytes that may be held in memory.
        """
        self.width, self.dtype, self.device = width, dtype, device
        self.count = 0
        self._budget_rows = budget // (width * dtype.itemsize)
        self._near = torch.empty(0, width, dtype=dtype, device=device)
        self._held = 0
        self._far: RowFile | None = None
        self.spills = device.type == "cpu"

    @property
    def on_disk(self) -> bool:
        """Whether the budget did not suffice."""
        return self._far is not None

    def reserve(self, rows: int) -> None:
        """Make room for so many more rows at once."""
        wanted = self.count + rows
        if wanted > self._budget_rows and self._far is None:
            self._far = RowFile(self.width, self.dtype)
            if self.spills:
                self._far.write(0, self._near[: self._held])
                self._budget_rows = self._held = 0
                self._near = self._near[:0].clone()
        wanted = min(wanted, self._budget_rows)
        if wanted > len(self._near):
            near = self._near.new_empty(wanted, self.width)
            near[: self._held] = self._near[: self._held]
            self._near = near

    def append(self, rows: Tensor) -> int:
        """Add rows; returns the address of the first, the others follow."""
        self.reserve(len(rows))
        first, here = self.count, min(len(rows), len(self._near) - self._held)
        self._near[self._held : self._held + here] = rows[:here]
        self._held += here
        if self._far is not None and here < len(rows):
            self._far.write(first + here, rows[here:])
        self.count += len(rows)
        return first

    def cut(self, count: int) -> None:
        """Forget all rows beyond the first `count`."""
        self.count, self._held = min(self.count, count), min(self._held, count)

    def take(self, index: Tensor) -> Tensor:
        """The rows at some addresses, [..., width]."""
        flat = index.flatten()
        if self._far is None:
            found = self._near.index_select(0, flat)
        elif not self._held:
            found = self._far.read(flat).to(self.device)
        else:
            near = flat < self._held
            found = self._near.new_empty(len(flat), self.width)
            found[near] = self._near.index_select(0, flat[near])
            found[~near] = self._far.read(flat[~near]).to(self.device)
        return found.reshape(*index.shape, self.width)


class RowFile:
    """Rows in a temporary file without a name, gone with the process however that ends.

    It lies in the folder that the environment variable `ATLAS_CACHE` names, or else where temporary
    files go.
    """

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        """A file without rows.

        Args:
            width: Numbers in a row.
            dtype: Of the numbers.
        """
        self._width, self._dtype = width, dtype
        self._bytes = width * dtype.itemsize
        with _told():
            self._file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 - as long as its rows
                dir=os.environ.get(FOLDER), buffering=0
            )

    def write(self, address: int, rows: Tensor) -> None:
        """Put rows at an address and those after it."""
        left = _bytes_of(rows.cpu().contiguous())
        at = address * self._bytes
        with _told():
            while left:
                done = os.pwrite(self._file.fileno(), left, at)
                left, at = left[done:], at + done

    def read(self, index: Tensor) -> Tensor:
        """The rows at some addresses [N, width]; those that follow each other are read at once."""
        wanted = index.cpu().numpy()
        found = torch.empty(len(wanted), self._width, dtype=self._dtype)
        whole = _bytes_of(found)
        ends = [*(np.flatnonzero(np.diff(wanted) != 1) + 1).tolist(), len(wanted)]
        start = 0
        for end in ends if len(wanted) else []:
            piece = whole[start * self._bytes : end * self._bytes]
            self._fill(piece, int(wanted[start]) * self._bytes)
            start = end
        return found

    def _fill(self, piece: memoryview, at: int) -> None:
        while piece:
            done = os.preadv(self._file.fileno(), [piece], at)
            if not done:
                raise InputError("the temporary file of the lower blocks' outputs was cut short")
            piece, at = piece[done:], at + done


@contextmanager
def _told() -> Iterator[None]:
    """Within this context a failure of the file is told as what the user can do about it."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"outputs of the lower blocks cannot be written to a temporary file: "
            f"{error.strerror}; set {FOLDER} to a folder with room, or train.prefix_holds=inputs, "
            "or train.prefix_cache_mb=0 to do without"
        ) from error


def _bytes_of(rows: Tensor) -> memoryview:
    """The memory of contiguous rows."""
    return rows.view(torch.uint8).reshape(-1).numpy().data
