"""Where records come from, and how they become examples, with errors that name the record."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from atlas.config.messages import show
from atlas.errors import InputError
from atlas.federation.clients import Example, Task

Fields = Mapping[str, object]


def read_example(task: Task, record: Fields, where: str) -> Example:
    """One record read through its task.

    Args:
        task: Names the fields and, for classification, the labels.
        record: A JSON object or CSV row.
        where: The record's place, such as `train.jsonl:12`, for the error message.

    Returns:
        The example. Labels may be given as names or as indices into the names.

    Raises:
        InputError: If a field is missing or holds what the task has no use for.
    """
    texts = read_texts(task, record, where)
    if task.kind == "classification":
        return Example(texts, _index(_field(task, record, task.label, where), task, where))
    prompt = (render_prompt(task, texts),)
    if task.labels:
        label = _index(_field(task, record, task.label, where), task, where)
        return Example(prompt, label, task.labels[label], task.labels)
    if not task.choices:
        answer = _text(task, record, task.label, where)
        if not answer.strip():
            raise InputError(f"{where}: {task.label} is empty, but task {task.name!r} learns it")
        return Example(prompt, -1, answer)
    choices = _choices(_field(task, record, task.choices, where), task, where)
    label = _choice(_field(task, record, task.label, where), choices, task, where)
    return Example(prompt, label, choices[label], choices)


def read_texts(task: Task, record: Fields, where: str) -> tuple[str, ...]:
    """What a record asks, whether or not it has an answer: the task's text fields.

    Raises:
        InputError: If a field is missing, no text, or all of them are empty.
    """
    texts = tuple(_text(task, record, field, where) for field in task.text)
    check_texts(task, texts, where)
    return texts


def check_texts(task: Task, texts: Sequence[str], where: str) -> None:
    """Refuses texts that no model can read.

    Raises:
        InputError: All of them are empty, or one holds a broken character.
    """
    fields = " and ".join(task.text)
    if not any(text.strip() for text in texts):
        raise InputError(f"{where}: {fields} empty, but task {task.name!r} reads it")
    for text in texts:
        _encodable(text, fields, where)


def text_key(example: Example) -> tuple[str, ...]:
    """By what two examples count as the same text: their texts without case and spacing."""
    return tuple(" ".join(text.casefold().split()) for text in example.texts)


def known_size(size: int | None, split: str) -> int:
    """The size of a split that is dealt, where there is no file of the client's own to share out.

    Raises:
        InputError: If it is null.
    """
    if size is None:
        raise InputError(
            f"data.{split}: null given, but only the files of `clients` are shared out whole; "
            "allowed: a whole number >= 1"
        )
    return size


def _field(task: Task, record: Fields, field: str, where: str) -> object:
    if field not in record or record[field] is None:
        there = ", ".join(sorted(record)) or "none"
        raise InputError(
            f"{where}: no field {field!r}, which task {task.name!r} needs; fields there: {there}"
        )
    return record[field]


def _text(task: Task, record: Fields, field: str, where: str) -> str:
    value = _field(task, record, field, where)
    if not isinstance(value, str):
        raise InputError(f"{where}: {field} must be text, got {show(value)}")
    return _encodable(value, field, where)


def _encodable(text: str, field: str, where: str) -> str:
    """JSON can spell half of a character pair, which no tokenizer can read."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {field} holds a broken character ({error.reason})") from error
    return text


def render_prompt(task: Task, texts: Sequence[str]) -> str:
    """The prompt; without a template the fields stand on lines of their own."""
    if not task.prompt:
        return "\n".join(texts) + "\n"
    return task.prompt.format(**dict(zip(task.text, texts, strict=True)))


def _whole(value: object) -> int | None:
    """The whole number that a value is or, as in CSV files, spells."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,9}\s*", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _index(value: object, task: Task, where: str) -> int:
    # A number that is a label's name means that name, as it does in CSV files, where all is text.
    name = str(value).strip() if _whole(value) is not None else value
    name = name.strip() if isinstance(name, str) else name
    if name in task.labels:
        return task.labels.index(str(name))
    index = _whole(value)
    if index is None or not 0 <= index < len(task.labels):
        allowed = ", ".join(f"{i} {label}" for i, label in enumerate(task.labels))
        raise InputError(
            f"{where}: {task.label} {show(value)} is no label of task {task.name!r}; "
            f"allowed, by index or name: {allowed}"
        )
    return index


def _choices(value: object, task: Task, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InputError(
            f"{where}: {task.choices} must be a list of texts (JSONL can hold one, CSV cannot), "
            f"got {show(value)}"
        )
    wrong = [choice for choice in value if not isinstance(choice, str) or not choice.strip()]
    if wrong or len(value) < 2:
        raise InputError(f"{where}: {task.choices} must hold two or more texts, got {show(value)}")
    return tuple(_encodable(choice, task.choices, where) for choice in value)


def _choice(value: object, choices: tuple[str, ...], task: Task, where: str) -> int:
    if isinstance(value, str) and value in choices:
        return choices.index(str(value))
    index = _whole(value)
    if index is None or not 0 <= index < len(choices):
        raise InputError(
            f"{where}: {task.label} {show(value)} is no choice; allowed: an index from 0 to "
            f"{len(choices) - 1} or the text of a choice"
        )
    return index


class Record(Mapping[str, object]):
    """A record that knows its place, such as `train.jsonl:12`."""

    def __init__(self, fields: Mapping[str, object], where: str) -> None:
        self.fields = fields
        self.where = where

    def __getitem__(self, key: str) -> object:
        return self.fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


class Source(Protocol):
    """A store of records by task and split."""

    def records(self, task: Task, split: str) -> Sequence[Record]:
        """All records of a split, `train` or `test`.

        Raises:
            InputError: If they cannot be had; names the file or data set.
        """
        ...
