"""Records from JSONL and CSV files."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atlas.config.places import DATA_VARIABLE
from atlas.data.examples import Record
from atlas.errors import InputError
from atlas.federation.clients import Task

SPLITS = ("train", "test")
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""What may stand between the cells of a CSV file; the first that the header has is taken."""

Row = Record | InputError
"""A row of a file, or what is wrong with it."""


def data_folder(path: Path | None) -> Path:
    """The folder of tasks: the setting or, without one, the environment's.

    Raises:
        InputError: If neither names a folder.
    """
    from_environment = os.environ.get(DATA_VARIABLE, "")
    if path is None and not from_environment:
        raise InputError(
            f"data.path: not set, and neither is {DATA_VARIABLE}; expected a folder with one "
            "folder per task, each with train.jsonl and test.jsonl"
        )
    folder = Path(from_environment) if path is None else path
    if not folder.is_dir():
        key = "data.path" if path is not None else DATA_VARIABLE
        raise InputError(f"{key}: {str(folder)!r} is no folder; expected one folder per task in it")
    return folder


@dataclass(frozen=True)
class FileSource:
    """Folders of JSONL files.

    Attributes:
        root: Holds `<task>/train.jsonl` and `<task>/test.jsonl`; tasks may share a folder.
        folders: Tasks whose two files are in a folder elsewhere.
    """

    root: Path | None
    folders: Mapping[str, Path] = field(default_factory=dict)

    def records(self, task: Task, split: str) -> list[Record]:
        """All records of `<task>/<split>.jsonl`.

        Raises:
            InputError: If a file is missing, empty or malformed.
        """
        folder = self.folders.get(task.name) or data_folder(self.root) / task.records
        if not folder.is_dir():
            expected = " and ".join(f"{name}.jsonl" for name in SPLITS)
            raise InputError(
                f"{folder}: no such folder; task {task.name!r} expects {expected} there"
            )
        return read_records(folder / f"{split}.jsonl")


@dataclass(frozen=True)
class FileRecords:
    """The records of a file, and what was found out about it on the way."""

    records: list[Record]
    notes: tuple[str, ...] = ()


def read_records(path: Path) -> list[Record]:
    """All records of a `.jsonl` or `.csv` file; a CSV file's first row names the fields.

    Raises:
        InputError: If the file is missing, empty, malformed or not in UTF-8.
    """
    return read_file(path).records


def read_file(path: Path) -> FileRecords:
    """As `read_records`, with what the user should be told.

    Raises:
        InputError: If the file is missing, empty, malformed or not in UTF-8.
    """
    readers = {".jsonl": jsonl_rows, ".csv": csv_rows}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise InputError(f"{path}: unknown suffix {path.suffix!r}; allowed: {', '.join(readers)}")
    text, records = read_text(path), []
    for row in readers[suffix](str(path), text):
        if isinstance(row, InputError):
            raise row
        records.append(row)
    if not records:
        raise InputError(f"{path}: no records in it; expected one example per line")
    delimiter = _delimiter(text) if suffix == ".csv" else ","
    told = f"{path}: read with {DELIMITERS[delimiter]}, not commas, between cells"
    return FileRecords(records, () if delimiter == "," else (told,))


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: It cannot be read, or is not in UTF-8.
    """
    try:
        # Spreadsheets put a byte order mark in front of UTF-8; utf-8-sig drops it.
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{line}: not UTF-8 (byte {error.start} is {error.object[error.start]:#04x}); "
            "save the file as UTF-8"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected a file") from error


def jsonl_rows(name: str, text: str) -> Iterator[Row]:
    """Records of a JSONL text, or what is wrong with a line; `name` is that of its file."""
    # Not splitlines: it also breaks at characters that JSON strings may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield InputError(f"{where}: not JSON ({error}); expected an object per line")
            continue
        if isinstance(value, dict):
            yield Record(value, where)
        else:
            kind = type(value).__name__
            yield InputError(f"{where}: a {kind}; expected an object such as {{...}} per line")


def csv_rows(name: str, text: str) -> Iterator[Row]:
    """Records of a CSV text, or what is wrong with a row; after a broken quote nothing is known.

    Raises:
        InputError: The header will not do.
    """
    delimiter = _delimiter(text)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] = []
    done = 0
    try:
        for row in rows:
            # A quoted cell may run over many lines: a record is where it begins.
            where, done = f"{name}:{done + 1}", rows.line_num
            if not any(cell.strip() for cell in row):
                continue
            if not names:
                names = _header([cell.strip() for cell in row], where)
            elif len(row) != len(names):
                cells = _cells(row, delimiter)
                yield InputError(f"{where}: {cells}; the header names {len(names)}")
            else:
                yield Record(dict(zip(names, row, strict=True)), where)
    except csv.Error as error:
        yield InputError(f"{name}:{done + 1}: malformed CSV ({error})")


def _delimiter(text: str) -> str:
    """What stands between cells, by the header: spreadsheets of many countries write semicolons."""
    header = next((line for line in text.splitlines() if line.strip()), "")
    bare = re.sub(r'"[^"]*"', "", header)
    return next((sign for sign in DELIMITERS if sign in bare), ",")


def _cells(row: list[str], delimiter: str) -> str:
    """How many there are and, where another sign may have been meant, a hint at it."""
    count = f"{len(row)} cell{'' if len(row) == 1 else 's'}"
    for sign, name in DELIMITERS.items():
        if sign != delimiter and any(sign in cell for cell in row):
            used = DELIMITERS[delimiter]
            return f"{count} between {used} (there are {name}; the header is split by {used})"
    return count


def _header(names: list[str], where: str) -> list[str]:
    if "" in names or len(set(names)) < len(names):
        raise InputError(f"{where}: the header must name every column once, got {', '.join(names)}")
    return names
