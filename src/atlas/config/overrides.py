"""Changes to plain settings: ``key=value`` texts and blocks laid over others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas.config.messages import show
from atlas.config.reading import parse_yaml
from atlas.errors import InputError


def parse_override(text: str) -> tuple[list[str], Any]:
    """Splits one ``key=value``.

    Args:
        text: For example ``data.tasks=[sst2,mrpc]``.

    Returns:
        The parts of the key and the value as plain YAML value.

    Raises:
        InputError: There is no ``=``, a part of the key is empty, or the value is not YAML.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"override {show(text)}: not UTF-8 text") from None
    key, sign, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not sign or not all(path):
        raise InputError(f"override {show(text)}: expected key=value, for example train.lr=1e-3")
    if path[0] == "sizes":
        raise InputError(
            f"override {show(text)}: the size blocks stay as they are; override the setting itself"
        )
    return path, parse_yaml(value, f"override {show(text)}")


def set_value(settings: dict[str, Any], path: Sequence[str], value: object) -> None:
    """Sets one value in nested mappings and lists, in place.

    Args:
        settings: Where to set it; missing mappings on the way are made.
        path: Keys, and indices into lists.
        value: The new value.

    Raises:
        InputError: The path leads through a value that has no entries, or off the end of a list.
    """
    holder: Any = settings
    for depth, part in enumerate(path):
        index: Any = _list_index(holder, path, depth) if isinstance(holder, list) else part
        if depth == len(path) - 1:
            holder[index] = value
            return
        child = holder[index] if isinstance(holder, list) else holder.get(part)
        if child is None:
            child = holder[index] = {}
        if not isinstance(child, dict | list):
            here = ".".join(path[: depth + 1])
            raise InputError(
                f"{'.'.join(path)}: {here} is {show(child)}, which has no entries; "
                f"allowed: a key that leads through mappings and lists"
            )
        holder = child


def _list_index(holder: list[Any], path: Sequence[str], depth: int) -> int:
    """Returns a part of a key as an index into a list that it meets."""
    part, here = path[depth], ".".join(path[:depth])
    if not (part.isascii() and part.isdigit()) or len(part) > 9 or int(part) >= len(holder):
        allowed = f"an index from 0 to {len(holder) - 1}" if holder else "none, it is empty"
        raise InputError(
            f"{'.'.join(path)}: {here} is a list, {show(part)} is not in it; allowed: {allowed}"
        )
    return int(part)


def merge(base: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Lays one set of plain values over another.

    Args:
        base: The values below.
        upper: The values that win.

    Returns:
        A new mapping; mappings merge key by key, everything else is replaced whole.
    """
    merged = dict(base)
    for key, value in upper.items():
        below = merged.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        merged[key] = merge(below or {}, value) if both else value
    return merged
