"""Clients' data from memory: texts and labels, tables of pandas and datasets, lists of records.

It becomes JSONL of the client's own, so that it is read, checked and counted by the same code as
anybody's files, and a run can be resumed without the program that started it. Neither pandas nor
datasets is imported: their tables are known by what they can do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from atlas.config.messages import show
from atlas.data.tasks import TASKS
from atlas.errors import InputError

TEXT, LABEL = "text", "label"
PAIR = ("text1", "text2")
MOST_LABELS = 50
"""Different answers from which on labels look like texts, where most rows have one of their own."""
ALLOWED = "(texts, labels), a list of records, a pandas DataFrame, a datasets.Dataset"


class TaskFields(NamedTuple):
    """Which columns a task reads."""

    text: tuple[str, ...]
    label: str = LABEL
    choices: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.text, self.label, *([self.choices] if self.choices else []))


@dataclass(frozen=True)
class MemoryTable:
    """What one client was given.

    Attributes:
        records: By column; texts and labels without names have none yet.
        pairs: Texts and labels as given, where they came without names.
        names: Names of the labels in index order, where the table knows them.
    """

    records: list[dict[str, Any]]
    pairs: list[tuple[object, object]] | None = None
    names: tuple[str, ...] = ()

    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return list(dict.fromkeys(name for record in self.records for name in record))

    def named(self, fields: TaskFields, client: str) -> list[dict[str, Any]]:
        """The records under a task's own names, in plain values; other columns are left out."""
        rows = self.records
        if self.pairs is not None:
            rows = [_under(fields, texts, label) for texts, label in self.pairs]
        return [
            {k: _plain(row[k], client, n, k) for k in fields.columns if k in row}
            for n, row in enumerate(rows, start=1)
        ]


def read_table(client: str, given: object) -> MemoryTable:
    """What a client was given, whatever its form.

    Raises:
        InputError: It is of no form that is known.
    """
    table: Any = given
    if hasattr(table, "to_dict") and hasattr(table, "columns"):
        return MemoryTable([dict(row) for row in table.to_dict("records")])
    if hasattr(table, "to_list") and hasattr(table, "features"):
        names = getattr(table.features.get(LABEL), "names", None)
        return MemoryTable([dict(row) for row in table.to_list()], names=tuple(names or ()))
    listed = isinstance(table, Sequence) and not isinstance(table, str | bytes)
    if listed and table and all(isinstance(row, Mapping) for row in table):
        return MemoryTable([dict(row) for row in table])
    if listed and len(table) == 2 and all(_is_column(column) for column in table):
        texts, labels = (list(column) for column in table)
        if len(texts) != len(labels):
            raise InputError(
                f"client {client}: {len(texts)} texts and {len(labels)} labels; "
                "allowed: a label for each text"
            )
        return MemoryTable([], list(zip(texts, labels, strict=True)))
    kind = type(given).__name__
    raise InputError(f"client {client}: a {kind} of {_size(given)}; allowed: {ALLOWED}")


def find_fields(name: str, tables: Mapping[str, MemoryTable]) -> TaskFields:
    """Columns of a task that nobody described, from the tables of all its clients.

    Raises:
        InputError: They do not say which columns are read.
    """
    found: dict[TaskFields, str] = {}
    for client, table in tables.items():
        found.setdefault(_fields_of(name, client, table), client)
    if len(found) > 1:
        first, second = list(found.items())[:2]
        raise InputError(
            f"task {name!r}: {first[1]} has {', '.join(first[0].text)}, {second[1]} has "
            f"{', '.join(second[0].text)}; describe it: tasks={{{name!r}: {{'text': [...]}}}}"
        )
    return next(iter(found))


def find_labels(name: str, label: str, tables: Mapping[str, MemoryTable]) -> list[str]:
    """Names of a task's labels, from the tables of all its clients: numbers first, then words.

    Raises:
        InputError: They look like texts to be written, not like labels to choose from.
    """
    told = [table.names for table in tables.values() if table.names]
    if told and len(set(told)) == 1 and len(told) == len(tables):
        return list(told[0])
    given = [value for client, table in tables.items() for value in _labels(table, label, client)]
    values = {value for value in given if value is not None and str(value).strip()}
    if len(values) > MOST_LABELS and 2 * len(values) > len(given):
        raise InputError(
            f"task {name!r}: {len(values)} different labels in {len(given)} rows; if they are "
            f"texts to write, describe it: tasks={{{name!r}: {{'kind': 'causal', 'text': [...]}}}}"
        )
    order = sorted(values, key=lambda v: (isinstance(v, str), v if isinstance(v, int) else str(v)))
    return list(dict.fromkeys(str(value).strip() for value in order))


def known_fields(name: str, described: Mapping[str, Any]) -> TaskFields | None:
    """Columns of a task that the settings describe or that is built in; None for any other."""
    own = described.get(name)
    if isinstance(own, Mapping):
        text = own.get("text") or [TEXT]
        return TaskFields(tuple(text), own.get("label", LABEL), own.get("choices", ""))
    built_in = TASKS.get(name)
    if built_in is None:
        return None
    return TaskFields(built_in.text, built_in.label, built_in.choices)


def to_jsonl(records: Sequence[Mapping[str, Any]]) -> bytes:
    """One JSON object a line; half characters stay as they are, for the reader to refuse."""
    lines = (json.dumps(record, ensure_ascii=True) + "\n" for record in records)
    return "".join(lines).encode("ascii")


def _fields_of(name: str, client: str, table: MemoryTable) -> TaskFields:
    if table.pairs is not None:
        several = any(isinstance(texts, list | tuple) for texts, _ in table.pairs)
        return TaskFields(PAIR if several else (TEXT,))
    columns, rows = table.columns(), table.records
    words = [c for c in columns if c != LABEL and any(isinstance(r.get(c), str) for r in rows)]
    text = (TEXT,) if TEXT in words else tuple(words)
    if LABEL not in columns or not 1 <= len(text) <= 2:
        raise InputError(
            f"client {client}: columns {', '.join(columns) or 'none'}; which of them task {name!r} "
            f"reads is told by a column {LABEL!r} and one or two of text, or by "
            f"tasks={{{name!r}: {{'text': [...], 'label': ...}}}}"
        )
    return TaskFields(text)


def _labels(table: MemoryTable, label: str, client: str) -> list[Any]:
    given = [label for _, label in table.pairs] if table.pairs is not None else None
    values = given if given is not None else [row.get(label) for row in table.records]
    return [_plain(value, client, n, label) for n, value in enumerate(values, start=1)]


def _under(fields: TaskFields, texts: object, label: object) -> dict[str, Any]:
    """Texts without names under a task's; too few or too many are left for the reader to refuse."""
    own = texts if isinstance(texts, list | tuple) else [texts]
    return {**dict(zip(fields.text, own, strict=False)), fields.label: label}


def _is_column(value: object) -> bool:
    if isinstance(value, str | bytes | Mapping):
        return False
    return isinstance(value, Sequence) or hasattr(value, "tolist") or hasattr(value, "to_list")


def _size(given: object) -> str:
    length: Any = getattr(given, "__len__", None)
    return f"{length()} entries" if callable(length) else "no length"


def _plain(value: object, client: str, number: int, column: str) -> Any:  # noqa: ANN401
    """A value as JSON has it: null where it is missing, truth values as words, 2.0 as 2."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    scalar: Any = value
    if hasattr(scalar, "item") and not isinstance(scalar, str):
        scalar = scalar.tolist() if getattr(scalar, "ndim", 0) else scalar.item()
    if isinstance(scalar, bool):
        return "true" if scalar else "false"
    if isinstance(scalar, float):
        if not math.isfinite(scalar):
            return None
        return int(scalar) if scalar.is_integer() else str(scalar)
    if isinstance(scalar, str | int):
        return scalar
    if isinstance(scalar, list | tuple):
        return [_plain(entry, client, number, column) for entry in scalar]
    raise InputError(
        f"client {client}, row {number}: {column} is {show(str(scalar))} of type "
        f"{type(scalar).__name__}; allowed: text, numbers, truth values"
    )
