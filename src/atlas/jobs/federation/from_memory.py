"""A federation of data that lies in memory: written into the run's own folder, then run as any."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atlas.config.load import RunConfig, build_config
from atlas.config.reading import parse_override
from atlas.data.in_memory import (
    MemoryTable,
    TaskFields,
    find_fields,
    find_labels,
    known_fields,
    read_table,
    to_jsonl,
)
from atlas.errors import InputError
from atlas.jobs.runner import Finished, start_in
from atlas.runs.events import Observe, Progress
from atlas.runs.files import check_name, safe_child, write_synced
from atlas.runs.folder import RunFolder

DATA = "data"
"""Folder inside a run's own that holds data from memory."""
UNNAMED = "labels"
"""The task of clients for whom none was named."""


def run_from_memory(  # noqa: PLR0913
    clients: Mapping[str, object],
    task: str | Mapping[str, str] | None,
    settings: Mapping[str, Any],
    overrides: Sequence[str],
    parent: Path,
    watch: Observe | None = None,
    progress: Progress | None = None,
) -> Finished:
    """Write clients' data into a fresh run folder and run the federation.

    The folder comes first, since the settings name the files in it; bad input takes it away again.

    Raises:
        InputError: Data or settings will not do; rows are named by client and number.
    """
    if not clients:
        raise InputError("federate: no clients; allowed: a mapping of client ids to data")
    for client in clients:
        check_name(client, "client id")
    tables = {client: read_table(client, given) for client, given in clients.items()}
    named = _task_names(list(tables), task)
    described = dict(settings.get("tasks", {}))
    fields = _settle_tasks(tables, named, described)
    name = _given_name(settings, overrides)
    folder = RunFolder.create(parent, name)
    place = folder.path.absolute() / DATA
    try:
        place.mkdir()
        for client, table in tables.items():
            rows = table.named(fields[named[client]], client)
            write_synced(safe_child(place, client).with_suffix(".jsonl"), to_jsonl(rows))
        config = _config(place, named, {**settings, "tasks": described}, overrides)
        return start_in(folder, config, watch, progress)
    except InputError as error:
        raise InputError(_by_row(str(error), place)) from error
    finally:
        if not folder.config.exists():
            shutil.rmtree(folder.path, ignore_errors=True)


def _task_names(clients: Sequence[str], task: str | Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(task, Mapping):
        return dict.fromkeys(clients, task or UNNAMED)
    missing = [client for client in clients if client not in task]
    others = [client for client in task if client not in clients]
    if missing or others:
        wrong = f"{missing[0]} has none" if missing else f"{others[0]} is no client"
        raise InputError(f"task: {wrong}; allowed: a task for each of {', '.join(clients)}")
    return dict(task)


def _settle_tasks(
    tables: Mapping[str, MemoryTable], named: Mapping[str, str], described: dict[str, Any]
) -> dict[str, TaskFields]:
    """The columns of every task; those that nobody described are described here, from the data."""
    found = {}
    for name in dict.fromkeys(named.values()):
        own = {client: table for client, table in tables.items() if named[client] == name}
        fields = known_fields(name, described)
        if fields is None:
            fields = find_fields(name, own)
            labels = find_labels(name, fields.label, own)
            described[name] = {"text": list(fields.text), "label": fields.label, "labels": labels}
        found[name] = fields
    return found


def _given_name(settings: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """The run's name, before its settings are complete."""
    given = [value for path, value in map(parse_override, overrides) if path == ["name"]]
    return str([*[settings.get("name", "federation")], *given][-1])


def _config(
    place: Path, named: Mapping[str, str], settings: Mapping[str, Any], overrides: Sequence[str]
) -> RunConfig:
    clients = [
        {"id": client, "task": task, "data": str(place / f"{client}.jsonl")}
        for client, task in named.items()
    ]
    return build_config({**settings, "clients": clients}, overrides)


def _by_row(message: str, place: Path) -> str:
    """A message that names rows of what was given, not lines of files that are gone."""
    files = re.escape(f"{place}/") + r"([A-Za-z0-9_-]+)\.jsonl"
    message = re.sub(files + r":(\d+)", r"client \1, row \2", message)
    return re.sub(files, r"what client \1 was given", message)
