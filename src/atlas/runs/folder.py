"""The folder of one run: where everything lies, who may write to it, and its summary."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from atlas.errors import InputError
from atlas.runs.files import check_name, plain, safe_child
from atlas.runs.files import write_text_atomic as write_text_atomic
from atlas.runs.misfit import misfits


@dataclass(frozen=True)
class RunFolder:
    """One run's folder and the paths in it.

    Attributes:
        path: The folder itself.
    """

    path: Path

    @classmethod
    def create(cls, parent: Path, name: str) -> RunFolder:
        """Makes a fresh folder and never touches an existing one.

        Args:
            parent: The folder of all runs; made when missing.
            name: The run's name; when taken, ``name-2``, ``name-3`` and so on.

        Returns:
            The new, empty folder.

        Raises:
            InputError: The name is not allowed, or the folder cannot be made.
        """
        check_name(name, "run name")
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for number in itertools.count(1):
                path = parent / (name if number == 1 else f"{name}-{number}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    break
        except OSError as error:
            raise InputError(f"{parent}: cannot hold a run folder: {error.strerror}") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens the folder of an existing run.

        Args:
            path: The folder.

        Returns:
            The folder.

        Raises:
            InputError: It is not a run: there is no ``config.yaml`` in it.
        """
        folder = cls(path)
        if not folder.config.is_file():
            reason = "it has no config.yaml" if path.is_dir() else "there is no such folder"
            raise InputError(f"{path}: not a run folder: {reason}")
        return folder

    @property
    def config(self) -> Path:
        """The fully resolved settings."""
        return self.path / "config.yaml"

    @property
    def machine(self) -> Path:
        """What the run was made on."""
        return self.path / "machine.json"

    @property
    def events(self) -> Path:
        """The log, one JSON object per line."""
        return self.path / "events.jsonl"

    @property
    def plan(self) -> Path:
        """What was found out before the first round."""
        return self.path / "plan"

    @property
    def rounds(self) -> Path:
        """The checkpoints of the last rounds."""
        return self.path / "rounds"

    @property
    def adapters(self) -> Path:
        """The clients' delivered adapters, one folder each."""
        return self.path / "adapters"

    @property
    def models(self) -> Path:
        """Whole models of a memory or grokking run, one folder for each arm."""
        return self.path / "models"

    @property
    def best(self) -> Path:
        """Models as they were after the round in which they did best, one folder for each arm."""
        return self.path / "best"

    @property
    def plots(self) -> Path:
        """Pictures of the run."""
        return self.path / "plots"

    @property
    def summary(self) -> Path:
        """The results."""
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        """The page to look at."""
        return self.path / "report.html"

    def safe_child(self, name: str) -> Path:
        """Returns the adapter folder of a client, which lies inside `adapters`.

        Args:
            name: The client's id.

        Returns:
            The path; it need not exist.

        Raises:
            InputError: The name is not a client id, or a link leads out of the run.
        """
        return safe_child(self.adapters, name)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the run for this process; the system frees it even after kill -9.

        Raises:
            InputError: Another process holds it.
        """
        owner = self.path / ".lock.pid"
        guard = FileLock(self.path / ".lock")
        try:
            guard.acquire(blocking=False)
        except Timeout:
            raise InputError(f"{self.path} is being run by {_owner_text(owner)}") from None
        try:
            # A file of its own, since a lock file is not readable everywhere while it is held.
            write_text_atomic(owner, f"{os.getpid()}\n")
            yield
        finally:
            owner.unlink(missing_ok=True)
            guard.release()


def _owner_text(path: Path) -> str:
    """Names the process that holds a lock, as far as it has said who it is."""
    try:
        number = path.read_text("utf-8").strip()
    except OSError:
        number = ""
    return f"process {number}" if number.isdigit() else "another process"


_SCHEMAS = {
    "federation": "summary.schema.json",
    "memory": "summary_memory.schema.json",
    "grokking": "summary_grokking.schema.json",
}
_KINDS = " or ".join(_SCHEMAS)


class DamagedSummaryError(InputError):
    """A summary that is there and of no use; what it was made from may be whole."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}; write it again with: atlas resume {path.parent}")
        self.problem = problem


def schema(kind: str = "federation") -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of ``summary.json`` for a kind of run."""
    file = resources.files("atlas.runs") / _SCHEMAS[kind]
    loaded: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return loaded


def write_summary(path: Path, summary: Mapping[str, object]) -> None:
    """Writes the results at once, with sorted keys; NaN and the infinities become null.

    Args:
        path: The file.
        summary: The results; see `schema`.
    """
    text = json.dumps(plain(summary), sort_keys=True, indent=2, allow_nan=False)
    write_text_atomic(path, text + "\n")


def read_summary(path: Path) -> dict[str, Any]:
    """Reads the results of a run.

    Args:
        path: The file.

    Returns:
        The results.

    Raises:
        InputError: The file cannot be read.
        DamagedSummaryError: It is not JSON, or not what the schema of its kind says.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        summary = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedSummaryError(path, f"not JSON: {error}") from None
    if not isinstance(summary, dict):
        raise DamagedSummaryError(path, "not a summary: expected a JSON object")
    kind = summary.get("kind")
    if not isinstance(kind, str) or kind not in _SCHEMAS:
        raise DamagedSummaryError(path, f"not a summary: kind is {kind!r}, not {_KINDS}")
    problem = next(misfits(summary, schema(kind)), None)
    if problem is not None:
        raise DamagedSummaryError(path, f"not a whole summary: {problem}")
    return summary
