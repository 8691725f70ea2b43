"""Many texts answered in one go, each by the client that its row names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlas.data.examples import Record
from atlas.data.files import Row
from atlas.data.questions import LINE
from atlas.errors import InputError
from atlas.jobs.federation.client_models import (
    ClientModels,
    Question,
    adapter_folder,
    client_names,
    open_clients,
)
from atlas.runs.folder import RunFolder

CLIENT = "client"
OWN = (CLIENT, "answer", "probability", "probabilities", "error")
"""What is written beside a row's own columns; such columns of the row give way."""


@dataclass(frozen=True)
class AnsweredRows:
    """What came of a file of texts.

    Attributes:
        rows: All of them in order, with their own columns and `client`, `answer` and, of labels,
            `probabilities`; a bad row has `error` instead.
        bad: What is wrong with bad rows.
    """

    rows: list[dict[str, Any]]
    bad: list[str]


def answer_rows(folder: RunFolder, rows: Sequence[Row], client: str | None) -> AnsweredRows:
    """Answer rows, those of one backbone in passes together.

    Args:
        folder: A finished federation.
        rows: Records, or what is wrong with them.
        client: Who answers rows that name nobody in a column `client`.

    Raises:
        InputError: The run has no such client, or no row can be answered.
    """
    if client is not None:
        adapter_folder(folder, client)
    models = open_clients(folder, _named(folder, rows, client))
    found: list[dict[str, Any]] = []
    asked: dict[int, Question] = {}
    bad = []
    for place, row in enumerate(rows):
        try:
            if isinstance(row, InputError):
                raise row
            question = _question(models, folder, row, client)
        except InputError as error:
            bad.append(str(error))
            own = row.fields if isinstance(row, Record) else {}
            found.append({**_kept(own), "error": str(error)})
            continue
        found.append({**_kept(row.fields), CLIENT: question.client})
        asked[place] = question
    if not asked:
        raise InputError(f"no row can be answered; the first: {bad[0]}")
    for place, told in zip(asked, models.answer(list(asked.values())), strict=True):
        told = {**told, "answer": told["answer"].strip()}
        found[place] |= {key: told[key] for key in OWN if key in told}
    return AnsweredRows(found, bad)


def _named(folder: RunFolder, rows: Sequence[Row], client: str | None) -> list[str]:
    """Clients that rows ask for and that there are; all of them need not be loaded."""
    known = set(client_names(folder))
    asked = {str(row.get(CLIENT) or client or "") for row in rows if isinstance(row, Record)}
    if client is None and asked == {""}:
        raise InputError(
            f"--client: missing, and no row has a column {CLIENT!r}; "
            f"clients: {', '.join(sorted(known))}"
        )
    if not asked & known:
        wrong = ", ".join(sorted(asked - known)) or "none"
        raise InputError(f"no such clients: {wrong}; clients: {', '.join(sorted(known))}")
    return sorted(asked & known)


def _question(models: ClientModels, folder: RunFolder, row: Record, client: str | None) -> Question:
    name = row.get(CLIENT) or client
    if not isinstance(name, str) or name not in models.tasks:
        there = ", ".join(client_names(folder))
        raise InputError(f"{row.where}: no client {name!r}; clients: {there}")
    fields = models.tasks[name].text
    record: Mapping[str, object] = row
    if set(row.fields) <= {LINE, CLIENT} and len(fields) == 1:
        record = {fields[0]: row.get(LINE)}  # a line is the text, whatever the task calls it
    return models.read(name, record, row.where)


def _kept(fields: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in OWN}
