"""Where records come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from atlas.federation.clients import Task


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
