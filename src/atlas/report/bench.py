"""A benchmark as a table, and as bars or lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text


def bench_view(found: Mapping[str, Any]) -> Group:
    """Rows, ratios and notes of a benchmark for people."""
    parts: list[Any] = [_rows_table(found["rows"])]
    if found["ratios"]:
        ratios = Table(title="ratios", title_justify="left", show_header=False, box=None)
        for name, value in found["ratios"].items():
            ratios.add_row(name, _figure(value))
        parts += [Text(), ratios]
    if found["notes"]:
        parts += [Text(), *(Text(note) for note in found["notes"])]
    return Group(*parts)


def _rows_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        words = any(isinstance(row.get(column), str) for row in rows)
        table.add_column(column.replace("_", " "), justify="left" if words else "right")
    for row in rows:
        table.add_row(*(_figure(row.get(column)) for column in columns))
    return table


def _figure(value: object) -> str:
    """Three digits that count; whole numbers and words as they are."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
