"""Rows of numbers that only ever grow: in memory up to a budget, then mapped from a file."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

FIRST = 1 << 14
"""Rows of the first slab; each later one is twice as large, so that there are never many."""


@dataclass(frozen=True)
class Slab:
    """Rows [count, width] with the addresses from `start` on; `mapped` if they are in a file."""

    start: int
    rows: Tensor
    mapped: mmap.mmap | None = None

    @property
    def stop(self) -> int:
        """The first address beyond it."""
        return self.start + len(self.rows)


class Slabs:
    """Rows [*, width] by address.

    A file that rows are mapped from has no name, so it is gone with the process, however that
    ends. It lies in the folder that the environment variable `ATLAS_CACHE` names, or else where
    temporary files go.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device, budget: int) -> None:
        """Slabs without any row.

        Args:
            width: Numbers in a row.
            dtype: Of the numbers.
            device: Where rows in memory are, and where `take` puts what it finds.
            budget: Bytes that may be held in memory.
        """
        self.width, self.dtype, self.device = width, dtype, device
        self.count = 0
        self._budget_rows = budget // (width * dtype.itemsize)
        self._slabs: list[Slab] = []

    @property
    def on_disk(self) -> bool:
        """Whether the budget did not suffice."""
        return bool(self._slabs) and self._slabs[-1].stop > self._budget_rows

    def append(self, rows: Tensor) -> int:
        """Add rows; returns the address of the first, the others follow."""
        first, done = self.count, 0
        while done < len(rows):
            if not self._slabs or self.count == self._slabs[-1].stop:
                self._slabs.append(self._open())
            slab = self._slabs[-1]
            some = rows[done : done + slab.stop - self.count]
            at = self.count - slab.start
            slab.rows[at : at + len(some)] = some.to(slab.rows.device)
            self.count += len(some)
            done += len(some)
        return first

    def take(self, index: Tensor) -> Tensor:
        """The rows at some addresses, [..., width]."""
        if len(self._slabs) == 1:
            return self._from(self._slabs[0], index)
        flat = index.flatten()
        found = torch.empty(len(flat), self.width, dtype=self.dtype, device=self.device)
        for slab in self._slabs:
            inside = torch.nonzero((flat >= slab.start) & (flat < slab.stop)).flatten()
            if len(inside):
                found[inside] = self._from(slab, flat[inside] - slab.start)
        return found.reshape(*index.shape, self.width)

    def _from(self, slab: Slab, index: Tensor) -> Tensor:
        found = slab.rows[index.to(slab.rows.device)].to(self.device)
        if slab.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            # The file's pages stay where the system keeps files, but no longer count as ours.
            slab.mapped.madvise(mmap.MADV_DONTNEED)
        return found

    def _open(self) -> Slab:
        size = FIRST << len(self._slabs)
        left = self._budget_rows - self.count
        if left > 0:
            size = min(size, left)
            return Slab(
                self.count, torch.empty(size, self.width, dtype=self.dtype, device=self.device)
            )
        return _mapped(self.count, size, self.width, self.dtype)


def _mapped(start: int, size: int, width: int, dtype: torch.dtype) -> Slab:
    """Rows in a new file without a name."""
    with tempfile.TemporaryFile(dir=os.environ.get("ATLAS_CACHE")) as file:
        file.truncate(size * width * dtype.itemsize)
        mapped = mmap.mmap(file.fileno(), 0)
    return Slab(start, torch.frombuffer(mapped, dtype=dtype).reshape(size, width), mapped)
