"""What there is, on a terminal: presets, strategies and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

Rows = Sequence[Mapping[str, Any]]


def presets_table(rows: Rows) -> Group:
    """One line per preset."""
    table = _table("preset", "kind", "sizes", "what it is")
    for row in rows:
        table.add_row(row["name"], row["kind"], ", ".join(row["sizes"]), escape(row["about"]))
    return Group(
        table,
        Text("run one with: atlas run PRESET size=quick; presets on real text need ATLAS_DATA"),
    )


def strategies_table(rows: Rows) -> Group:
    """One line per strategy: what it is, and its mixing matrix."""
    table = _table("strategy", "what it is", "W, who learns from whom")
    for row in rows:
        table.add_row(row["name"], escape(row["about"]), escape(row["W"]))
    return Group(table, Text("choose one with: atlas run demo strategy=NAME"))


def settings_view(rows: Rows) -> RenderableType:
    """A table of many settings, or one setting (of each kind of run that has it) in full."""
    if len({row["key"] for row in rows}) == 1:
        return Group(*(Text(_one(row)) for row in rows))
    kinds = dict.fromkeys(row["kind"] for row in rows)
    return Group(*(_settings_table(kind, [r for r in rows if r["kind"] == kind]) for kind in kinds))


def _settings_table(kind: str, rows: Rows) -> Table:
    table = _table("key", "default", "allowed", "what it does")
    table.title, table.title_justify = f"kind: {kind}", "left"
    # A key that is cut cannot be copied.
    table.columns[0].no_wrap = True
    for row in rows:
        cells = (row["key"], _default(row), row["allowed"], row["about"])
        table.add_row(*map(escape, cells))
    return table


def _one(row: Mapping[str, Any]) -> str:
    lines = {
        "type": row["type"],
        "default": _default(row),
        "allowed": row["allowed"],
        "of runs": f"kind: {row['kind']}",
    }
    told = "\n".join(f"{name:>9}  {value}" for name, value in lines.items())
    return f"{row['key']}: {row['about']}\n{told}"


def _default(row: Mapping[str, Any]) -> str:
    """As it would be written on the command line."""
    if row["required"]:
        return "required"
    value = row["default"]
    return value if isinstance(value, str) else json.dumps(value)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    table.columns[0].no_wrap = True
    return table
