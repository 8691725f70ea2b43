"""All runs and studies below a folder, and how far a run is; asked again and again by the page."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from atlas.errors import InputError
from atlas.report.read.log import events_of
from atlas.report.read.source import RunSource, first_score, read_run
from atlas.report.words.plain_text import spelled

PART = re.compile(r"(?!\.)[A-Za-z0-9_.=,+-]{1,160}")
"""Of an id: what folders of runs are called, nothing that leads elsewhere."""
DEEPEST = 3
"""Folders from the root to a run: a study holds a folder for each combination, that one its run."""
RECENT = 3
"""Rounds by whose mean duration the time left is told."""
TROUBLE = ("alert", "refused", "failure", "diverged", "stopped")
MOST_TOLD = 8

Stamp = tuple[tuple[int, int], ...]


def find_below(root: Path, name: str, only: str | None = None) -> Path:
    """The folder of a run or study by its id, which lies below the root.

    Args:
        root: The folder that holds run folders.
        name: The id.
        only: The one id that may be asked for; None for any.

    Raises:
        InputError: The id is none, leads elsewhere, or nothing of that name is there.
    """
    parts = name.split("/")
    if not 0 < len(parts) <= DEEPEST or not all(PART.fullmatch(part) for part in parts):
        raise InputError(f"{spelled(name)[:200]!r} is not the id of a run")
    if only not in (None, name):
        raise InputError(f"{name!r} is not shown here")
    path = root.joinpath(*parts)
    if path.resolve() != root.resolve().joinpath(*parts) or not (is_run(path) or is_study(path)):
        raise InputError(f"there is no run {name!r}")
    return path


def is_run(path: Path) -> bool:
    """Whether a folder holds a run, or what is left of one."""
    return (path / "config.yaml").is_file() or (path / "events.jsonl").is_file()


def is_study(path: Path) -> bool:
    """Whether a folder holds a study with its table."""
    return (path / "compare.json").is_file()


def stamp_of(path: Path) -> Stamp:
    """Changes whenever there is something new to show of a folder."""
    found = []
    for name in ("events.jsonl", "summary.json", "config.yaml", "compare.json", ".lock.pid"):
        try:
            facts = (path / name).stat()
            found.append((facts.st_size, facts.st_mtime_ns))
        except OSError:
            found.append((-1, 0))
    return tuple(found)


@dataclass
class Catalogue:
    """The runs below a folder, or only one; what has not changed is not read again."""

    root: Path
    only: str | None = None

    def __post_init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, dict[str, Any]]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """One row per run and study, the latest first; an unreadable one says so."""
        found = []
        for path in self._folders():
            stamp = stamp_of(path)
            known = self._known.get(path)
            # What holds a run may be gone without a trace, so runs under way are looked at anew.
            if known is None or known[0] != stamp or known[1]["state"] == "running":
                self._known[path] = known = (stamp, self._row(path))
            found.append(known[1])
        return sorted(found, key=lambda row: (-row["changed"], row["id"]))

    def _folders(self) -> list[Path]:
        found = []
        try:
            here = sorted(path for path in self._places() if PART.fullmatch(path.name))
        except OSError:
            return []
        for path in here:
            if is_run(path) or is_study(path):
                found.append(path)
            elif "-compare-" in path.name and path.is_dir():
                found += [run for run in sorted(path.glob("*/*")) if is_run(run)]
        return found

    def _places(self) -> Iterable[Path]:
        return self.root.iterdir() if self.only is None else [self.root / self.only]

    def _row(self, path: Path) -> dict[str, Any]:
        name = path.relative_to(self.root).as_posix()
        changed = max(time_ns for _, time_ns in stamp_of(path)) / 1e9
        row = {"id": name, "changed": changed, "kind": "", "state": "unreadable", "what": ""}
        row |= {"done": 0, "rounds": 0, "score": None, "gain": None, "seconds": None, "told": ""}
        try:
            return row | (_study_row(path) if is_study(path) else _run_row(read_run(path)))
        except (InputError, OSError) as error:
            return row | {"told": spelled(str(error))}


def _study_row(path: Path) -> dict[str, Any]:
    try:
        result = json.loads((path / "compare.json").read_bytes())
        means = [row["mean"] for row in result["rows"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"compare.json cannot be read: {error}") from None
    arms = {str(row.get("arm")) for row in result["rows"]}
    about = {"kind": "study", "state": "finished", "what": spelled(", ".join(sorted(arms)))}
    return about | {"done": len(means), "rounds": len(means), "score": 100 * max(means, default=0)}


def _run_row(run: RunSource) -> dict[str, Any]:
    summary = run.summary or {}
    score, gain = (summary.get(key) or {} for key in ("score", "gain"))
    value = score.get("mean") if score else first_score(run)
    what = run.config.get("strategy") if run.kind == "federation" else summary.get("task")
    return {
        "kind": run.kind,
        "state": run.state,
        "what": spelled(str(what or "")),
        "done": run.done,
        "rounds": run.rounds,
        "score": None if value is None else 100 * value,
        "gain": None if gain.get("mean") is None else 100 * gain["mean"],
        "seconds": summary.get("seconds"),
        "told": spelled(" ".join(run.missing[:1])),
    }


def progress_of(run: RunSource) -> dict[str, Any]:
    """How far a run is, how long it may still take, and what went wrong on the way."""
    finished = list(events_of(run.events, "round_finished"))
    durations = [e["seconds"] for e in finished if isinstance(e.get("seconds"), int | float)]
    left = None
    if durations and run.rounds and run.state == "running":
        each = statistics.fmean(durations[-RECENT:])
        left = max(0.0, each * max(0, run.rounds - run.done) - _age(finished[-1]))
    told = [_words(event) for event in events_of(run.events, *TROUBLE)]
    last = run.events[-1]["event"] if run.events else ""
    return {
        "state": run.state,
        "done": run.done,
        "rounds": run.rounds,
        "left": left,
        "doing": spelled(str(last)).replace("_", " "),
        "alerts": told[-MOST_TOLD:],
        "events": len(run.events),
    }


def _age(event: Mapping[str, Any]) -> float:
    """Seconds since something was logged; 0 where its time cannot be read."""
    try:
        then = datetime.fromisoformat(str(event["time"])).timestamp()
    except (KeyError, ValueError):
        return 0.0
    return max(0.0, time.time() - then)


def _words(event: Mapping[str, Any]) -> str:
    """An event that somebody should know of, in a line."""
    where = [
        f"{key} {event[key]}" for key in ("round", "step", "client", "arm", "layer") if key in event
    ]
    why = event.get("reason") or event.get("measure") or ""
    return spelled(f"{event['event']}: {', '.join(where)}{'; ' if why else ''}{why}")
