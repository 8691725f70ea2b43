"""The process a run is made in: machine facts, one heap for all threads, and Ctrl-C that waits.

Machine facts are enough to explain speed and bits, and nothing that names anyone.

Every step asks for tensors of a few megabytes and frees them again, each time of slightly other
sizes. glibc gives every thread heaps of its own, whose holes no other thread can use; with one heap
for all (`share_heap`) a federation takes 60 MB less, and no more time (`docs/speed.md`).

Ctrl-C waits for the round in progress to be saved.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FrameType

_PACKAGES = ("torch", "transformers", "peft", "safetensors", "numpy")


def machine_facts(threads: int | None = None) -> dict[str, object]:
    """Returns facts about this machine and the installed libraries.

    Args:
        threads: The torch threads of the run, when known; bits depend on them.

    Returns:
        Plain values; no host name, no user name, no paths.
    """
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": _memory(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }
    if threads is not None:
        facts["threads"] = threads
    return facts


def given_command() -> str | None:
    """The command line that started this process, where it is one of Atlas, to be copied."""
    program = Path(sys.argv[0] if sys.argv else "")
    ours = program.name == "atlas" or program.parts[-2:] == ("atlas", "__main__.py")
    return shlex.join(["atlas", *sys.argv[1:]]) if ours else None


def usable_cores() -> int:
    """Cores that this process may use, where the system tells; else those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int | None:
    """Returns the physical memory, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _version(package: str) -> str | None:
    """Returns an installed version without the seconds that an import would take."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


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


@dataclass
class StopRequest:
    """Whether the run was asked to stop.

    Attributes:
        requested: True after the first SIGINT or SIGTERM.
    """

    requested: bool = False


@contextlib.contextmanager
def stop_after_round(notify: Callable[[], None] | None = None) -> Iterator[StopRequest]:
    """Lets the first SIGINT or SIGTERM ask for a stop, and the second SIGINT interrupt at once.

    Outside the main thread signals cannot be handled; there the request is never set.

    Args:
        notify: Called once, when the stop is first asked for.

    Yields:
        The request, to be looked at between rounds.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    interrupts = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        del frame
        first, request.requested = not request.requested, True
        if notify is not None and first:
            notify()
        if number == signal.SIGINT:
            interrupts += 1
            if interrupts > 1:
                raise KeyboardInterrupt

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, handle)
            # A handler that was not set from Python reads as None and cannot be set again.
            stack.callback(signal.signal, number, signal.SIG_DFL if before is None else before)
        yield request
