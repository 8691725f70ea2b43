"""Files of texts to be answered: CSV, JSONL or plain lines, also from standard input.

A bad row is told and passed over; those after it are still read.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from atlas.data.examples import Record
from atlas.data.files import Row, csv_rows, jsonl_rows, read_text
from atlas.errors import InputError

STDIN = "-"
LINE = "text"
"""What the column of a file of plain lines is called."""
Format = Literal["csv", "jsonl", "txt"]
FORMATS = ("csv", "jsonl", "txt")


def read_rows(source: str, form: str | None = None) -> list[Row]:
    """All rows of a file or of standard input, each with its place or with what is wrong with it.

    Args:
        source: A file, or `-` for standard input.
        form: csv, jsonl or txt; None: by the file's suffix. Standard input is taken for JSONL if
            it starts with a brace, otherwise for lines.

    Raises:
        InputError: The file cannot be read, has no rows, or its form is not known.
    """
    if source == STDIN:
        name, text = "standard input", _standard_input()
        by_itself = "jsonl" if text.lstrip().startswith("{") else "txt"
    else:
        path = Path(source)
        name, by_itself = source, path.suffix.lower().removeprefix(".")
        check_format(form or by_itself, source if form is None else "--format")
        text = read_text(path)
    chosen = check_format(form or by_itself, "--format")
    readers = {"csv": csv_rows, "jsonl": jsonl_rows, "txt": _lines}
    rows = list(readers[chosen](name, text))
    if not rows:
        raise InputError(f"{name}: no rows in it; expected one text per row")
    return rows


def check_format(form: str, what: str) -> Format:
    """The form of that name.

    Raises:
        InputError: There is no such form.
    """
    if form not in FORMATS:
        raise InputError(f"{what}: {form!r} is no form that is read; allowed: {', '.join(FORMATS)}")
    return cast(Format, form)


def to_text(answers: Sequence[Mapping[str, Any]], form: str) -> str:
    """Answered rows as CSV or JSONL; CSV has the share of the answer alone.

    Raises:
        InputError: Another form is asked for.
    """
    if form == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in answers)
    if form != "csv":
        raise InputError(f"--to: {form!r} is no form that is written; allowed: csv, jsonl")
    flat = [_flat(row) for row in answers]
    names = list(dict.fromkeys(name for row in flat for name in row))
    last = [name for name in ("client", "answer", "probability", "error") if name in names]
    order = [name for name in names if name not in last] + last
    page = io.StringIO(newline="")
    writer = csv.DictWriter(page, order, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return page.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in row.items() if key != "probabilities"}
    if "probabilities" in row:
        own["probability"] = f"{row['probabilities'][row['answer']]:.6f}"
    return {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in own.items()}


def _lines(name: str, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield Record({LINE: line.rstrip("\r")}, f"{name}:{number}")


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: not UTF-8 (byte {error.start})") from error
