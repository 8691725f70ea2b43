"""Bytes that tensors take while something is computed: held now, and at most so far.

Bytes are counted, not pages of the system or seconds: a busy machine changes nothing, and the same
work gives the same numbers every time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from atlas.runs.cores import one_core


class MemoryCount(Protocol):
    """Bytes of tensors born since counting began."""

    @property
    def held(self) -> int:
        """Those of tensors that are alive now."""
        ...

    @property
    def highest(self) -> int:
        """The most that was held at once."""
        ...


@contextmanager
def count_memory(device: torch.device) -> Iterator[MemoryCount]:
    """Within this context the memory of new tensors is counted.

    On CUDA the allocator keeps count. On the CPU every new storage is followed until it is freed;
    resident memory would say less, since freed pages go back to the system when it pleases.
    """
    if device.type == "cuda":
        yield _Allocated(device)
        return
    storages = _Storages()
    with one_core(), storages:  # which sees the operators of its own thread
        yield storages


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The most memory that tensors made by `work` held at once."""
    with count_memory(device) as memory:
        work()
    return memory.highest


class _Allocated:
    """What the allocator of a CUDA device says."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        self._device, self._before = device, torch.cuda.memory_allocated(device)

    @property
    def held(self) -> int:
        """Bytes allocated now."""
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.memory_allocated(self._device)) - self._before

    @property
    def highest(self) -> int:
        """Most bytes allocated since."""
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device)) - self._before


class _Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages born inside the context, forward and backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = 0
        self.highest = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operation returns
        del types
        given = {_storage_id(value) for value in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for value in _tensors(result):
            if _storage_id(value) not in given | self._known:
                self._follow(value.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001 - the storage's identity
        self._known.add(key)
        self.held += size
        self.highest = max(self.highest, self.held)
        # Not tied to this object's life: a late release must find its own bookkeeping.
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.held -= size


def _tensors(values: object) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _storage_id(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)  # noqa: SLF001 - the storage's identity
