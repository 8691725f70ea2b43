"""What a run was made on: enough to explain its speed and bits, nothing that names anyone."""

from __future__ import annotations

import os
import platform
from importlib import metadata

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
