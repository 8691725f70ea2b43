"""The libraries that keep figures, each with a log that a resumed run goes on with."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from atlas.errors import InputError
from atlas.jobs.track.scalars import Scalar
from atlas.runs.folder import RunFolder

LIBRARIES = ("tensorboard", "mlflow")
BATCH = 500
"""Numbers that MLflow takes at a time."""


class FigureLog(Protocol):
    """Keeps points of curves."""

    @property
    def state(self) -> Mapping[str, str]:
        """What must be known to go on with the same log."""
        ...

    def write(self, points: Sequence[Scalar]) -> None:
        """Keep some; they are on disk when it returns."""
        ...

    def close(self, *, finished: bool) -> None:
        """Nothing more comes from this process."""
        ...


def check_library(track: str) -> None:
    """Refuse a library that is not installed, before anything is written.

    Raises:
        InputError: It is not installed.
    """
    if track in LIBRARIES and importlib.util.find_spec(track) is None:
        raise InputError(
            f"track: {track} is not installed: pip install 'atlas-personal[track]'; or track=none"
        )


class TensorBoardLog:
    """Event files in the run's own folder; `tensorboard --logdir runs` shows those of all runs."""

    state: Mapping[str, str] = {}

    def __init__(self, folder: RunFolder, purge: int | None) -> None:
        """Open a new event file.

        Args:
            folder: The run.
            purge: Points of this step and later are no longer shown; None for a new log.
        """
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder.path / "tensorboard"), purge_step=purge)

    def write(self, points: Sequence[Scalar]) -> None:
        """Keep points."""
        for point in points:
            self._writer.add_scalar(point.name, point.value, point.step)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        """Close the file."""
        del finished
        self._writer.close()


class MlflowLog:
    """A run of MLflow, in the store of MLFLOW_TRACKING_URI or in `mlflow.db` beside the runs."""

    def __init__(self, folder: RunFolder, name: str, run: str | None) -> None:
        """Start a run of MLflow, or go on with one.

        Args:
            folder: The run.
            name: The experiment's name.
            run: The id of the run to go on with.
        """
        known = run is not None
        with _quiet_alembic():
            from mlflow.tracking import MlflowClient

            self._client: Any = MlflowClient(tracking_uri=store_address(folder.path.parent))
            if run is None:
                found = self._client.get_experiment_by_name(name)
                number = found.experiment_id if found else self._client.create_experiment(name)
                run = self._client.create_run(number, run_name=folder.path.name).info.run_id
            else:
                self._client.update_run(run, status="RUNNING")
        self._run: str = run
        self._left = known
        self.state: Mapping[str, str] = {"run": run}

    def write(self, points: Sequence[Scalar]) -> None:
        """Keep points; those that a killed process may have left in the store only once."""
        from mlflow.entities import Metric

        now, fresh = int(1000 * time.time()), list(points)
        if self._left:
            fresh = [point for point in points if point.step not in self._steps(point.name)]
            self._left = False
        for start in range(0, len(fresh), BATCH):
            some = fresh[start : start + BATCH]
            metrics = [Metric(_allowed(p.name), p.value, now, p.step) for p in some]
            self._client.log_batch(self._run, metrics=metrics)

    def _steps(self, name: str) -> set[int]:
        return {m.step for m in self._client.get_metric_history(self._run, _allowed(name))}

    def close(self, *, finished: bool) -> None:
        """Say whether the run has come to its end."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


def open_log(track: str, folder: RunFolder, name: str, known: Mapping[str, Any]) -> FigureLog:
    """The log of a run, new or as it was left; `known` is empty or what was kept of it."""
    if track == "tensorboard":
        last = known.get("step")
        return TensorBoardLog(folder, None if last is None else int(last) + 1)
    return MlflowLog(folder, name, known.get("run"))


def store_address(parent: Path) -> str:
    """Where MLflow keeps runs: as the environment says, or in a file beside the run folders."""
    own = os.environ.get("MLFLOW_TRACKING_URI")
    return own or f"sqlite:///{(parent / 'mlflow.db').absolute()}"


def _allowed(name: str) -> str:
    """A name as MLflow takes it."""
    kept = "_-./ :"
    return "".join(sign if sign.isalnum() or sign in kept else "_" for sign in name)[:250]


@contextlib.contextmanager
def _quiet_alembic() -> Iterator[None]:
    """Making a database is told in many lines that nobody needs."""
    loggers = [logging.getLogger(name) for name in ("mlflow.store.db.utils", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
