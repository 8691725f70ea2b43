"""What a run tells its figures' log: rounds that are saved, each once, whatever kills the run.

Events of a round are kept until the round is saved, then written, then noted in `track.json`. A
resumed run first writes the saved rounds that are not noted. What was written but not noted is
written again to the same places: TensorBoard is told to forget it, MLflow is asked what it has.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from atlas.config.load import RunConfig
from atlas.jobs.track.scalars import final_scalars, round_scalars
from atlas.jobs.track.writers import FigureLog, open_log
from atlas.runs.events import Observe, ignore, read_events
from atlas.runs.files import write_text_atomic
from atlas.runs.folder import RunFolder

NOTES = "track.json"


class Tracking:
    """Passes a run's figures on; if its log fails, the run goes on without."""

    def __init__(self, track: str, folder: RunFolder, name: str) -> None:
        self._track, self._folder, self._name = track, folder, name
        self._log: FigureLog | None = None
        self._events: list[dict[str, Any]] = []
        self._round = self._step = 0
        self._finished = False
        self._tell: Observe = ignore

    def __enter__(self) -> Tracking:
        return self

    def begin(self, tell: Observe) -> None:
        """Go on with the log of the run, if it has one; `tell` hears of a log that fails."""
        self._tell = tell
        with self._harmless():
            known = self._notes()
            self._log = open_log(self._track, self._folder, self._name, known)
            self._round, self._step = int(known.get("round", 0)), int(known.get("step", 0))
            if self._folder.events.exists():
                self._events = [e for e in read_events(self._folder.events) if self._is_new(e)]
            self.flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._harmless():
            if self._log is not None:
                self._log.close(finished=self._finished)

    def event(self, event: str, fields: Mapping[str, object]) -> None:
        """One event of the run."""
        if event == "finished":
            self._finished = True
        self._events.append({"event": event, **fields})

    def flush(self) -> None:
        """The events so far are of rounds that are saved, or of the end."""
        with self._harmless():
            if self._log is None:
                return
            points = round_scalars(self._events)
            self._step = max([self._step, *(point.step for point in points)])
            points += final_scalars(self._events, self._step)
            rounds = [e["round"] for e in self._events if e["event"] == "round_finished"]
            self._round = max([self._round, *rounds])
            self._events = []
            if points:
                self._log.write(points)
            notes = {"track": self._track, "round": self._round, "step": self._step}
            text = json.dumps({**notes, **self._log.state}, indent=2) + "\n"
            write_text_atomic(self._folder.path / NOTES, text)

    def _is_new(self, event: Mapping[str, Any]) -> bool:
        number = event.get("round")
        return isinstance(number, int) and number > self._round

    def _notes(self) -> dict[str, Any]:
        """What was noted of the log; nothing if it was another library's."""
        try:
            known = json.loads((self._folder.path / NOTES).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        fits = isinstance(known, dict) and known.get("track") == self._track
        return known if fits else {}

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """A log that fails is told once and left alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a run is worth more than its curves
            self._log = None
            self._tell("untracked", {"reason": f"{type(error).__name__}: {error}"})


class NoTracking:
    """Nobody asked for curves; see `Tracking`."""

    def __enter__(self) -> NoTracking:
        return self

    def begin(self, tell: Observe) -> None:
        """Nothing to go on with."""

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def event(self, event: str, fields: Mapping[str, object]) -> None:
        """Not kept."""

    def flush(self) -> None:
        """Nothing to write."""


def open_tracking(config: RunConfig, folder: RunFolder) -> Tracking | NoTracking:
    """The log that the settings ask for."""
    if config.track == "none":
        return NoTracking()
    return Tracking(config.track, folder, config.name)
