"""Runs, studies and newcomers as they lie on disk: lists of all, or one with its results."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atlas.config.federation import FederationConfig
from atlas.config.load import RunConfig, load_resolved
from atlas.errors import InputError
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder, read_summary


def find_run(name: str, parent: Path) -> RunFolder:
    """A run by path, or by its name under `parent`."""
    for path in (Path(name), parent / name):
        with contextlib.suppress(OSError, ValueError):  # a name no file system takes is no run
            if path.exists():
                return RunFolder.open(path)
    raise InputError(f"{name}: no such run here or under {parent}")


def find_folder(name: str, parent: Path) -> Path:
    """A folder by path, or by its name under `parent`: a run, a study, or what is left of one."""
    for path in (Path(name), parent / name):
        with contextlib.suppress(OSError, ValueError):  # a name no file system takes is no folder
            if path.is_dir():
                return path
    raise InputError(f"{name}: no such folder here or under {parent}")


def describe_run(folder: RunFolder) -> dict[str, Any]:
    """State, settings that matter and the summary if there is one."""
    config = load_resolved(folder.config)
    events = read_events(folder.events) if folder.events.exists() else []
    done = sum(event["event"] == "round_finished" for event in events)
    summary = read_summary(folder.summary) if folder.summary.exists() else None
    return {
        "run": folder.path.name,
        "path": str(folder.path),
        "state": "finished" if summary else "unfinished",
        "kind": config.kind,
        **_what(config),
        "done": done,
        "seed": config.seed,
        "tasks": _tasks(events),
        "summary": summary,
    }


def _what(config: RunConfig) -> dict[str, object]:
    """What is run, and for how many rounds."""
    if isinstance(config, FederationConfig):
        return {"strategy": config.strategy, "rounds": config.rounds}
    return {"strategy": config.task.name, "rounds": config.rounds}


def _tasks(events: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    """Task of every client, as the run itself recorded it."""
    for event in events:
        if event["event"] in ("started", "resumed"):
            found: dict[str, str] = event.get("tasks", {})
            return found
    return {}


def list_runs(parent: Path) -> list[dict[str, Any]]:
    """All runs under a folder, by name; what is not a run is passed over."""
    if not parent.is_dir():
        raise InputError(f"{parent}: no such folder; start a run with: atlas run demo")
    folders = sorted(path for path in parent.iterdir() if (path / "config.yaml").is_file())
    return [_describe_or_say(RunFolder(path)) for path in folders]


def _describe_or_say(folder: RunFolder) -> dict[str, Any]:
    """One unreadable run must not hide the others."""
    try:
        return describe_run(folder)
    except InputError as error:
        unknown = {"kind": "", "strategy": "", "rounds": "?", "done": "?", "seed": "", "tasks": {}}
        about = {"run": folder.path.name, "path": str(folder.path), "state": "unreadable"}
        return {**about, **unknown, "summary": None, "error": str(error)}


def list_studies(parent: Path) -> list[dict[str, Any]]:
    """Studies under a folder that have their table, by name; one that is unreadable is left out."""
    found = []
    for path in sorted(parent.glob("*/compare.json")):
        with contextlib.suppress(InputError):
            found.append(read_study(path.parent))
    return found


def find_study(name: str, parent: Path) -> dict[str, Any] | None:
    """A study by path, or by its name under `parent`; None if there is none of that name."""
    for path in (Path(name), parent / name):
        with contextlib.suppress(OSError, ValueError):  # a name no file system takes is no study
            if (path / "compare.json").is_file():
                return read_study(path)
    return None


def read_study(folder: Path) -> dict[str, Any]:
    """What `atlas compare --json` printed.

    Raises:
        InputError: If it is not a table of a study.
    """
    return _read_json(folder / "compare.json", ("study", "rows", "tests", "tasks"))


def list_joins(folder: Path) -> list[dict[str, Any]]:
    """What is known of the newcomers to a run, by id; what is unreadable is left out."""
    found = []
    for path in sorted((folder / "joins").glob("*.json")):
        with contextlib.suppress(InputError):
            found.append(_read_json(path, ("client", "cluster", "scores")))
    return found


def _read_json(path: Path, parts: Sequence[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    missing = [part for part in parts if not isinstance(found, dict) or part not in found]
    if missing:
        raise InputError(f"{path}: {', '.join(missing)} missing")
    whole: dict[str, Any] = found
    return whole
