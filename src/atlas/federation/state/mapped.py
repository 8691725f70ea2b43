"""A cohort whose adapters lie in a file: only the clients at work are in memory.

The file is temporary and has no name, so that it is gone with the process however that ends; it
lies where `ATLAS_CACHE` says, or else where temporary files go. Its tensors are mapped, and pages
are given back after every tensor, since with a row the system maps what lies around it. A cohort in
memory is replaced when a client's adapter changes; here the client's rows are written into, since a
copy of all would cost what the file is to save.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from atlas.errors import InputError
from atlas.federation.adapters.adapter import Adapter, Layout, Member
from atlas.federation.adapters.cohort import Cohort, TensorPlace, put_row
from atlas.federation.batching.spill import FOLDER

ALIGNED = 64
"""Tensors begin at multiples of so many bytes."""
COPIED = 64
"""Clients copied at a time."""


class MappedFile:
    """A temporary file, all zero at first, and its mapping.

    Room on the disk is taken at once: a full disk is an error here, but ends the process when a
    mapped page finds no room later.
    """

    def __init__(self, size: int) -> None:
        try:
            with tempfile.TemporaryFile(dir=os.environ.get(FOLDER)) as file:
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                self.pages = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise InputError(
                f"server.state: {size / 1e6:.0f} MB of adapters cannot be put into a temporary "
                f"file: {error.strerror}; set {FOLDER} to a folder with room, or "
                "server.state=memory"
            ) from error

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, at: int) -> Tensor:
        """The numbers that begin at a byte, as a tensor that reads and writes the file."""
        count = math.prod(shape)
        return torch.frombuffer(self.pages, dtype=dtype, count=count, offset=at).reshape(shape)

    def release(self) -> None:
        """Give the pages back to the system, which keeps what was written."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.pages.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class DiskCohort(Cohort):
    """A cohort in a file; `put` and `write` change it in place.

    Attributes:
        file: Where its tensors are.
    """

    file: MappedFile = field(kw_only=True)

    @property
    def place(self) -> TensorPlace:
        """A cohort made like this one is in a file too."""
        return OnDisk()

    def take(self, client: str) -> Adapter:
        """One client's adapter, unpadded copies."""
        found = super().take(client)
        self.file.release()
        return found

    def fill(self, row: int, adapter: Mapping[str, Tensor]) -> None:
        """Write one client's tensors into a cohort that is still being made."""
        super().fill(row, adapter)
        self.file.release()

    def put(self, adapters: Mapping[str, Mapping[str, Tensor]]) -> DiskCohort:
        """This cohort, after the given clients' tensors were replaced in it."""
        for client, adapter in adapters.items():
            put_row(self.tensors, self.places[client], adapter)
            self.file.release()
        return self

    def write(self, clients: Sequence[str], tensors: Mapping[str, Tensor]) -> DiskCohort:
        """This cohort, after some clients' rows of stacked tensors were replaced in it."""
        rows = self.index(clients)
        for name, value in self.tensors.items():
            value[rows] = tensors[name]
            self.file.release()
        return self

    def select(self, clients: Sequence[str]) -> Cohort:
        """The sub-cohort of `clients` in memory."""
        rows = self.index(clients)
        members = tuple(self.members[i] for i in rows.tolist())
        tensors = {}
        for name, value in self.tensors.items():
            tensors[name] = value.index_select(0, rows)
            self.file.release()
        deltas = {client: self.deltas[client] for client in clients if client in self.deltas}
        slot = self.slot and self.slot.select(clients)
        return Cohort(self.layout, members, tensors, self.trains, deltas, slot)

    def release(self) -> None:
        """Give the pages back that were read."""
        self.file.release()

    def apart(self) -> DiskCohort:
        """The same adapters in a file of their own."""
        made = OnDisk().empty(self.layout, self.members, _shapes(self), _dtype(self), "cpu")
        for start in range(0, len(self.clients), COPIED):
            some = self.clients[start : start + COPIED]
            made.write(some, self.select(some).tensors)
        return replace(made, trains=self.trains, deltas=self.deltas)


def _shapes(cohort: Cohort) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in cohort.tensors.items()}


def _dtype(cohort: Cohort) -> torch.dtype:
    return next(iter(cohort.tensors.values())).dtype


class OnDisk:
    """Where cohorts are that do not fit into memory; see `TensorPlace`."""

    def empty(
        self,
        layout: Layout,
        members: tuple[Member, ...],
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> DiskCohort:
        """A cohort of zeros.

        Raises:
            InputError: There is no room, or the adapters belong on an accelerator.
        """
        if torch.device(device).type != "cpu":
            raise InputError(f"server.state: disk, but device is {device}; allowed: auto, memory")
        places, size = {}, 0
        for name, shape in shapes.items():
            places[name] = size
            size += -(-math.prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED
        file = MappedFile(max(size, ALIGNED))
        tensors = {name: file.tensor(shapes[name], dtype, at) for name, at in places.items()}
        return DiskCohort(layout, members, tensors, file=file)
