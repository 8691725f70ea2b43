"""One file of a user's own: which rows are examples, and what became of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atlas.data.examples import Record, read_example, text_key
from atlas.data.files import read_file
from atlas.federation.clients import Example, RowCounts, Task


@dataclass(frozen=True)
class OwnFile:
    """The different examples of a file in order, and the count of its rows."""

    examples: list[Example]
    counts: RowCounts


def read_own(path: Path, task: Task) -> OwnFile:
    """Read a JSONL or CSV file.

    Rows without a label are left out. A text that occurs again with the same label is taken once;
    one that occurs with different labels is not taken at all, since nobody knows which is right.

    Raises:
        InputError: If the file is missing, empty or malformed.
    """
    found = read_file(path)
    labelled = [record for record in found.records if not _is_unlabelled(record, task)]
    without = [record for record in found.records if _is_unlabelled(record, task)]
    examples = [read_example(task, record, record.where) for record in labelled]
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, example in enumerate(examples):
        groups.setdefault(text_key(example), []).append(index)
    split = [rows for rows in groups.values() if _disagree(task, [examples[i] for i in rows])]
    conflicting = {index for rows in split for index in rows}
    kept = [rows[0] for rows in groups.values() if rows[0] not in conflicting]
    notes = [*found.notes]
    if without:
        notes.append(_unlabelled_note(task, without))
    if split:
        notes.append(_conflict_note(task, split, examples, labelled))
    counts = RowCounts(
        rows=len(found.records),
        unlabelled=len(without),
        duplicates=len(examples) - len(conflicting) - len(kept),
        conflicts=len(conflicting),
        notes=tuple(notes),
    )
    return OwnFile([examples[i] for i in kept], counts)


def _is_unlabelled(record: Record, task: Task) -> bool:
    """Whether the label's place is there and empty; a missing place is a mistake in the task."""
    if task.label not in record:
        return False
    value = record[task.label]
    return value is None or (isinstance(value, str) and not value.strip())


def _disagree(task: Task, same_text: Sequence[Example]) -> bool:
    """Whether a text has several labels; a question may well have several answers."""
    return task.kind == "classification" and len({e.label for e in same_text}) > 1


def _unlabelled_note(task: Task, without: Sequence[Record]) -> str:
    if len(without) == 1:
        return f"1 row without {task.label}: {without[0].where}"
    return f"{len(without)} rows without {task.label}, the first: {without[0].where}"


def _conflict_note(
    task: Task,
    split: Sequence[Sequence[int]],
    examples: Sequence[Example],
    records: Sequence[Record],
) -> str:
    """Names the first text that has two labels, by the two lines that give them."""
    first = split[0][0]
    other = next(i for i in split[0] if examples[i].label != examples[first].label)
    names = [task.labels[examples[i].label] for i in (first, other)]
    texts = "1 text has" if len(split) == 1 else f"{len(split)} texts have"
    return (
        f"{texts} different labels and none of their rows is used, the first: "
        f"{records[first].where} says {names[0]!r}, {records[other].where} says {names[1]!r}"
    )
