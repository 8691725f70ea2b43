"""A run or a study as a report reads it: whatever is there, and a list of what is not.

Nothing here raises for a damaged file: one bad line must not cost the whole page.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from atlas.errors import InputError
from atlas.report.colours import task_slots
from atlas.report.read.log import Events, events_of, gaps, read_tasks
from atlas.report.words.english import counted, listed
from atlas.runs.events import read_what_is_there
from atlas.runs.folder import RunFolder, read_summary

KINDS = ("federation", "memory", "grokking")
KNOWN = frozenset(
    {"config.yaml", "machine.json", "events.jsonl", "summary.json", "report.html", "compare.json"}
    | {"compare.csv", "plan", "rounds", "adapters", "models", "best", "joins", "plots", "track"}
)
"""What a run or study folder holds."""


@dataclass(frozen=True)
class RunSource:
    """One run folder.

    Attributes:
        path: The folder.
        kind: federation, memory or grokking.
        state: finished, running or stopped.
        config: The settings, resolved; empty where they cannot be read.
        config_text: `config.yaml` as it is.
        machine: What it ran on; empty where that is not known.
        events: The whole log but for damaged lines.
        summary: What it came to; None before its end.
        missing: What is not there, or not as it should be, in sentences.
    """

    path: Path
    kind: str
    state: str
    config: Mapping[str, Any]
    config_text: str
    machine: Mapping[str, Any]
    events: Events
    summary: Mapping[str, Any] | None
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @cached_property
    def tasks(self) -> dict[str, str]:
        """Task of every client."""
        return read_tasks(self.events)

    @cached_property
    def slots(self) -> dict[str, int]:
        """Palette slot of every task."""
        return task_slots(self.tasks.values())

    def slot(self, client: str) -> int:
        """Palette slot of a client: that of its task."""
        return self.slots.get(self.tasks.get(client, ""), 0)

    @cached_property
    def clients(self) -> list[str]:
        """All clients, by task and then by name."""
        scored = (self.summary or {}).get("score", {}).get("clients", {})
        return sorted({*self.tasks, *scored}, key=lambda c: (self.tasks.get(c, ""), c))

    @cached_property
    def arms(self) -> list[str]:
        """Models of a memory or grokking run, in the order in which they were named."""
        for event in events_of(self.events, "started", "resumed"):
            return [str(arm) for arm in event.get("arms") or []]
        return list((self.summary or {}).get("arms", {}))

    @property
    def rounds(self) -> int:
        """How many rounds it is to have, 0 where nobody said."""
        for event in events_of(self.events, "resumed", "started"):
            total = event.get("rounds")
            if isinstance(total, int):
                return total
        return 0

    @property
    def done(self) -> int:
        """Rounds made."""
        return sum(1 for _ in events_of(self.events, "round_finished"))


def first_score(run: RunSource) -> float | None:
    """What the first model of a memory or grokking run gets right; None for others."""
    known = (run.summary or {}).get("accuracy", {})
    return known.get(run.arms[0]) if run.arms else None


@dataclass
class _Reader:
    """Reads files and writes down what is missing."""

    folder: RunFolder
    missing: list[str] = field(default_factory=list)

    def text(self, path: Path, needed: str) -> str | None:
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            self.missing.append(f"{path.name} is not there: {needed}.")
        except (OSError, ValueError) as error:
            self.missing.append(f"{path.name} cannot be read ({_reason(error)}): {needed}.")
        return None

    def mapping(self, path: Path, text: str | None, needed: str) -> dict[str, Any]:
        if text is None:
            return {}
        try:
            found = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        self.missing.append(f"{path.name} is not what it should be: {needed}.")
        return {}

    def events(self) -> Events:
        try:
            events, damaged = read_what_is_there(self.folder.events)
        except InputError as error:
            self.missing.append(f"The log is missing, and with it all that happened: {error}.")
            return []
        if not events and not damaged:
            self.missing.append("events.jsonl is empty: nothing that happened is known.")
        if damaged:
            where = listed([f"line {number}" for number in damaged])
            self.missing.append(
                f"events.jsonl has {counted(len(damaged), 'damaged line')} ({where}); what stood "
                "there is not shown."
            )
        numbers = [e["round"] for e in events_of(events, "round_finished") if _whole(e)]
        if lost := gaps(numbers):
            told = listed([str(number) for number in lost])
            word = "Round" if len(lost) == 1 else "Rounds"
            self.missing.append(f"{word} {told} left no end in events.jsonl.")
        return events

    def summary(self) -> dict[str, Any] | None:
        path = self.folder.summary
        if not path.exists():
            return None
        try:
            return read_summary(path)
        except InputError as error:
            self.missing.append(f"summary.json is of no use: {error}.")
            return None

    def foreign(self) -> None:
        try:
            here = sorted(p.name for p in self.folder.path.iterdir())
        except OSError:
            return
        found = [name for name in here if name not in KNOWN and not name.startswith(".")]
        if found:
            self.missing.append(f"Not part of a run, and not read: {listed(found)}.")


def _whole(event: Mapping[str, Any]) -> bool:
    return isinstance(event.get("round"), int)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def read_run(path: Path) -> RunSource:
    """A run folder for a report.

    Raises:
        InputError: There is no such folder, or nothing of a run in it.
    """
    folder = RunFolder(path)
    if not any(p.exists() for p in (folder.config, folder.events, folder.summary)):
        reason = "nothing of a run is in it" if path.is_dir() else "there is no such folder"
        raise InputError(f"{path}: not a run folder: {reason}")
    reader = _Reader(folder)
    text = reader.text(folder.config, "settings are not known")
    config = reader.mapping(folder.config, text, "settings are not known")
    about = "what the run was made on is not known"
    machine = reader.mapping(folder.machine, reader.text(folder.machine, about), about)
    events, summary = reader.events(), reader.summary()
    state = "finished" if summary is not None else "running" if is_running(folder) else "stopped"
    reader.foreign()
    source = RunSource(
        path=path,
        kind=_kind(config, summary, events),
        state=state,
        config=config,
        config_text=text or "",
        machine=machine,
        events=events,
        summary=summary,
        missing=tuple(reader.missing),
    )
    if state == "finished":
        return source
    word = "is under way" if state == "running" else "was stopped, or has failed"
    so_far = f"{source.done} of {source.rounds or '?'} rounds are done"
    told = f"This run {word}: {so_far}, and what comes of it is not known yet."
    return RunSource(**{**_fields(source), "missing": (told, *source.missing)})


def _fields(source: RunSource) -> dict[str, Any]:
    return {name: getattr(source, name) for name in RunSource.__dataclass_fields__}


def _kind(config: Mapping[str, Any], summary: Mapping[str, Any] | None, events: Events) -> str:
    """Of what kind a run is, by whatever says so."""
    began = next(events_of(events, "started", "resumed"), {})
    for told in (summary or {}, config, began):
        if told.get("kind") in KINDS:
            return str(told["kind"])
    return "federation"


def is_running(folder: RunFolder) -> bool:
    """Whether a process of this machine holds the run; asked without touching its lock."""
    try:
        number = int((folder.path / ".lock.pid").read_text("utf-8"))
        os.kill(number, 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return number > 0
