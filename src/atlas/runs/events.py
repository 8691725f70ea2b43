"""The event log of a run: append-only, one JSON object per line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from atlas.errors import InputError
from atlas.runs.files import to_json_line, write_bytes_atomic

Observe = Callable[[str, Mapping[str, object]], None]
"""Receives what happens in a run: an event's name and its fields."""

Progress = Callable[[str, int, int], None]
"""Receives how far a long piece of work is: (what, done, total)."""


def ignore(event: str, fields: Mapping[str, object]) -> None:
    """Nobody watches."""


class EventLog:
    """Appends events to a file; each is on its way to the disk before `log` returns.

    A last line that a killed process left unfinished is dropped on opening, since an event
    appended to it would be lost as well.
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the log.

        Args:
            path: The file.

        Raises:
            InputError: The file holds something else than events.
        """
        if path.exists():
            _drop_torn_tail(path)
        self._file = path.open("ab")

    def log(self, event: str, fields: Mapping[str, object]) -> None:
        """Appends one event with the time of now.

        Args:
            event: What happened.
            fields: What to record with it; NaN and the infinities become null.

        Raises:
            ValueError: The fields have an `event` or a `time` of their own.
            TypeError: A field has no JSON form.
        """
        taken = {"event", "time"} & fields.keys()
        if taken:
            raise ValueError(f"the field {min(taken)!r} of an event is set by the log itself")
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = to_json_line({"event": event, "time": now, **fields})
        self._file.write(line.encode("utf-8"))
        self._file.flush()

    def sync(self) -> None:
        """Waits until all events are on the disk; worth it before a checkpoint."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_events(path: Path) -> list[dict[str, object]]:
    """Reads all events; a last line that was cut off is left out.

    Args:
        path: The log.

    Returns:
        The events in the order in which they were logged.

    Raises:
        InputError: The file cannot be read, or a line other than the last is not an event.
    """
    return [event for _, event in _read_lines(path)]


def read_what_is_there(path: Path) -> tuple[list[dict[str, object]], list[int]]:
    """Reads the events of a log that may be damaged, for whoever only shows it.

    Args:
        path: The log.

    Returns:
        The events, and the numbers of the lines that are none.

    Raises:
        InputError: The file cannot be read.
    """
    events, damaged = [], []
    for number, line in enumerate(_lines(path), start=1):
        event = _parse(line)
        if event is None:
            damaged.append(number)
        else:
            events.append(event)
    return events, damaged


def drop_after_round(path: Path, last: int, also: Collection[str] = ()) -> None:
    """Removes the events of rounds that a resumed run will do again; before the log is opened.

    Args:
        path: The log; nothing happens when it is missing.
        last: The last round to keep; events without a round are kept.
        also: Names of events to remove whatever their round.

    Raises:
        InputError: A line other than the last is not an event.
    """
    if not path.exists():
        return
    kept = [
        line
        for line, event in _read_lines(path)
        if not _is_after(event, last) and event["event"] not in also
    ]
    write_bytes_atomic(path, b"".join(line + b"\n" for line in kept))


def _is_after(event: Mapping[str, object], last: int) -> bool:
    number = event.get("round")
    return isinstance(number, int) and number > last


def _drop_torn_tail(path: Path) -> None:
    """Ends the file with its last whole event."""
    whole = b"".join(line + b"\n" for line, _ in _read_lines(path))
    if whole != path.read_bytes():
        write_bytes_atomic(path, whole)


def _read_lines(path: Path) -> list[tuple[bytes, dict[str, object]]]:
    """Returns every event with the bytes of its line."""
    lines = _lines(path)
    events = []
    for number, line in enumerate(lines, start=1):
        event = _parse(line)
        if event is not None:
            events.append((line, event))
        elif number < len(lines):
            raise InputError(f"{path}: line {number}: not an event (a JSON object with `event`)")
    return events


def _lines(path: Path) -> list[bytes]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not lines[-1]:
        lines.pop()
    return lines


def _parse(line: bytes) -> dict[str, object] | None:
    """Returns the event on a line, or None when there is none."""
    try:
        event = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if isinstance(event, dict) and isinstance(event.get("event"), str):
        return event
    return None
