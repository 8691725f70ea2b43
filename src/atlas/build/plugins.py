"""Code of the user's own that a run's settings name: strategies, tasks and sources of data.

A plugin is a Python file, or an entry point of an installed package in the group `atlas.plugins`.
Importing it registers what it has, by the same functions that ours are registered with. Nothing is
imported that the settings do not name: a plugin is code and may do anything.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from atlas.config.messages import nearest
from atlas.errors import InputError

GROUP = "atlas.plugins"
_loaded: dict[str, str] = {}
"""What this process has imported, by name, and the hash of it."""


def load_plugins(names: Sequence[str]) -> dict[str, str]:
    """Import the plugins that are not imported yet.

    Args:
        names: Paths of Python files (they end in `.py`), or names of entry points.

    Returns:
        The hash of each file, or the version of the package an entry point is of, by name.

    Raises:
        InputError: If one is not there, fails, or is not what this process imported before.
    """
    found = {Path(name).name: _load(name) for name in names}
    if len(found) < len(names):
        raise InputError(f"plugins: {', '.join(names)}: two of one name; rename one of them")
    return found


def _load(name: str) -> str:
    found = _hash(name)
    if name not in _loaded:
        try:
            _import(name)
        except Exception as error:  # noqa: BLE001 - whatever a user's own code raises
            raise InputError(f"plugins: {name}: {_place(error)}") from error
        _loaded[name] = found
    if _loaded[name] != found:
        raise InputError(f"plugins: {name} has changed since this process read it; start it anew")
    return found


def _hash(name: str) -> str:
    if not name.endswith(".py"):
        point = _entry_point(name)
        return point.dist.version if point.dist is not None else ""
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"plugins: {name} cannot be read: {error.strerror}") from None


def _import(name: str) -> None:
    if not name.endswith(".py"):
        _entry_point(name).load()
        return
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"{GROUP.replace('.', '_')}_{digest}", name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise


def _entry_point(name: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - importlib's own type
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        guess = nearest(name, points)
        hint = f" did you mean {guess}?" if guess else ""
        known = ", ".join(sorted(points)) or "none is installed"
        raise InputError(
            f"plugins: {name!r} is neither a .py file nor an installed plugin;{hint} "
            f"installed: {known}"
        )
    return points[name]


def _place(error: Exception) -> str:
    """What went wrong, and where in the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    line = f"line {frames[-1].lineno}: " if frames else ""
    return f"{line}{type(error).__name__}: {error}"
