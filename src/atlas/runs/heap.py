"""The C library's heap, told how training uses it; where there is none of that kind, nothing.

Every step asks for tensors of a few megabytes and frees them again, each time of slightly other
sizes. glibc gives every thread heaps of its own, whose holes no other thread can use; with one heap
for all a federation takes 60 MB less, and no more time (`docs/speed.md`).
"""

from __future__ import annotations

import ctypes
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Names of settings in glibc's malloc.h."""
LARGE = 32 << 20
"""Bytes from which on a block is mapped by itself; what a step asks for is smaller."""
SPARE = 256 << 20
"""Bytes that may be free at the end of the heap before they are given back at once."""


@cache
def share_heap() -> bool:
    """Have all threads use one heap, in which what steps free stays for the next ones.

    Once for a process, before it has many threads; returns whether the library listened.
    """
    library = _glibc()
    if library is None:
        return False
    asked = ((ARENA_MAX, 1), (MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, SPARE))
    return all(library.mallopt(name, value) for name, value in asked)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return None
    return library if hasattr(library, "mallopt") else None
