"""What model cards are made of: facts without any path of this machine, and tables of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath


def card_facts(card: Mapping[str, object]) -> dict[str, str]:
    """What a card lists, as names and texts without any path of this machine."""
    return dict(_facts(card))


def _facts(values: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from _facts(value, f"{name}: ")
        else:
            yield name, _shown(value)


def _shown(value: object) -> str:
    """A value as text; of a path only its name, since the rest belongs to one machine."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(entry) for entry in value)
    text = str(value)
    for path in (PurePosixPath(text), PureWindowsPath(text)):
        if isinstance(value, Path) or path.is_absolute():
            return path.name
    return text


def card_table(rows: Mapping[str, str]) -> list[str]:
    """A table of two columns, as lines."""

    def cell(text: str) -> str:
        return " ".join(text.split()).replace("|", "\\|")

    lines = [f"| {cell(key)} | {cell(value)} |" for key, value in rows.items()]
    return ["| | |", "|---|---|", *lines]
