"""One skeleton for every kind of run: lock, resume, same data, save, interrupt, finish.

A kind of run gives its steps (`job.Job`); everything that makes a run safe to stop, kill and resume
is here and nowhere else. `start_run` and `resume_run` are what verbs and studies call.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atlas.config.load import LENGTHS, RunConfig, dump_config, length_of, lengthened, load_resolved
from atlas.errors import InputError
from atlas.jobs.job import Job, open_job
from atlas.jobs.track.tracking import open_tracking
from atlas.jobs.track.writers import check_library
from atlas.runs.checkpoint import Checkpoint, latest_round, save_round
from atlas.runs.events import EventLog, Observe, Progress, drop_after_round
from atlas.runs.files import write_text_atomic
from atlas.runs.folder import DamagedSummaryError, RunFolder, read_summary
from atlas.runs.process import (
    given_command,
    machine_facts,
    share_heap,
    stop_after_round,
    usable_cores,
)
from atlas.runs.ranks import Ranks, joined, local_count, started_count

ENDINGS = ("stopped", "tested", "finished")
"""Events of an end that is now no end, or that will be reached again."""


@dataclass(frozen=True)
class Finished:
    """Where a run is and, unless it was stopped before its end, its summary.

    Attributes:
        folder: Where it is.
        summary: What it came to; None if it was stopped before.
        asked: Whether it was asked to stop too late to be stopped, after its last round had begun.
            Whoever makes several runs must make no other then.
    """

    folder: RunFolder
    summary: dict[str, Any] | None
    asked: bool = False


def start_run(
    config: RunConfig,
    parent: Path,
    watch: Observe | None = None,
    progress: Progress | None = None,
) -> Finished:
    """Start a new run in a fresh folder under `parent`.

    Data and models are loaded first, so that bad input leaves no folder behind.
    """
    threads = set_threads(config)

    def open_folder(ranks: Ranks) -> RunFolder:
        path = new_folder(config, parent, threads).path if ranks.first else Path()
        return RunFolder(Path(ranks.tell(str(path))))

    with joined(config.device) as ranks:
        return _make(config, ranks, open_folder, watch, progress)


def start_in(
    folder: RunFolder,
    config: RunConfig,
    watch: Observe | None = None,
    progress: Progress | None = None,
) -> Finished:
    """Start a new run in a folder that holds nothing but its data; see `start_run`."""
    threads = set_threads(config)
    with joined(config.device) as ranks:
        return _make(config, ranks, lambda _: _describe(folder, config, threads), watch, progress)


def resume_run(
    path: Path,
    watch: Observe | None = None,
    progress: Progress | None = None,
    overrides: Sequence[str] = (),
) -> Finished:
    """Go on with a run from its last saved round; of a finished run the summary is returned.

    Args:
        path: The run folder.
        watch: Receives events.
        progress: Receives (what, done, total) during long work.
        overrides: A new length, `rounds=20` or `train.steps=900`: also a finished run then goes on.
    """
    folder = RunFolder.open(path)
    if overrides:
        if started_count() > 1:
            raise InputError(f"{overrides[-1]}: a run is made longer by one process, not several")
        lengthen(folder, overrides)
    if (done := known_result(folder)) is not None:
        return done  # whatever today's settings would say of it
    config = load_resolved(folder.config)
    use_threads(recorded_threads(folder))
    with joined(config.device) as ranks:
        return _make(config, ranks, lambda _: folder, watch, progress)


def _make(
    config: RunConfig,
    ranks: Ranks,
    open_folder: Callable[[Ranks], RunFolder],
    watch: Observe | None,
    progress: Progress | None,
) -> Finished:
    """One process's part of a run; what it holds is gone before the processes part."""
    check_library(config.track)
    job = open_job(config, progress, ranks)
    folder = open_folder(ranks)
    if not ranks.first:
        return follow(job, folder, ranks)
    return reported(carry_on(job, folder, watch), config)


def reported(finished: Finished, config: RunConfig) -> Finished:
    """The same run, with the page that its settings ask for if it is finished."""
    if finished.summary is not None and config.report:
        # Late: training can use the memory that pages take.
        from atlas.report.html.page import write_report

        write_report([finished.folder.path])
    return finished


def lengthen(folder: RunFolder, overrides: Sequence[str]) -> None:
    """Have a run end later; what it came to by now is kept until it comes to more.

    Raises:
        InputError: It is not a length, or not one beyond what the run has made.
    """
    before = load_resolved(folder.config)
    config = lengthened(before, overrides)
    with folder.lock():
        saved = latest_round(folder.rounds)
        if saved is not None and length_of(config) <= (made := _made(saved)):
            raise InputError(
                f"{overrides[-1]}: this run has made {made} of {length_of(before)} already; "
                f"allowed: a number of {LENGTHS[config.kind]} beyond that"
            )
        # The settings first: killed in between, the same command again does the rest.
        write_text_atomic(folder.config, dump_config(config, folder.path))
        folder.summary.unlink(missing_ok=True)


def _made(saved: Checkpoint) -> int:
    """How far a saved round is, in what a run's length is counted in."""
    steps: Any = saved.meta.get("steps", saved.number)
    return int(steps)


def carry_on(job: Job, folder: RunFolder, watch: Observe | None) -> Finished:
    """Run a job in its folder from wherever it is to its end, or until it is asked to stop."""
    began = time.perf_counter()
    notify = None if watch is None else partial(watch, "stopping", {})
    with folder.lock(), stop_after_round(notify) as stop:
        job.ranks.tell("")  # others look for a saved round once nobody else can change it
        saved = latest_round(folder.rounds)
        before = 0.0
        if saved is not None:
            check_identity(job, saved)
            before = job.restore(folder, saved)
        if folder.events.exists():
            drop_after_round(folder.events, job.round, ENDINGS)
        tracked = open_tracking(load_resolved(folder.config), folder)
        with EventLog(folder.events) as log, tracked as track:
            observe = observer(log, watch, track.event)
            track.begin(observe)
            observe("started" if saved is None else "resumed", job.facts())
            if saved is None:
                job.begin(folder, observe)

            def after_round() -> bool:
                # Events first: a saved round must never be without its history.
                log.sync()
                save(job, folder, before + time.perf_counter() - began)
                track.flush()
                return not job.ranks.any(stop.requested)

            if not job.run_rounds(observe, after_round):
                observe("stopped", {"round": job.round})
                return Finished(folder, None)
            summary = job.finish(folder, observe, before + time.perf_counter() - began)
            track.flush()
        job.draw(folder)
    return Finished(folder, summary, stop.requested)


def follow(job: Job, folder: RunFolder, ranks: Ranks) -> Finished:
    """Do in one of several processes what the first does in `carry_on`, and write nothing.

    The two take the same steps in the same order, so that they meet where values are passed.
    """
    with stop_after_round() as stop:
        ranks.tell("")  # the first one has the folder to itself
        saved = latest_round(folder.rounds)
        if saved is not None:
            check_identity(job, saved)
            job.restore(folder, saved)
        else:
            job.begin(folder, _unseen)

        def after_round() -> bool:
            job.snapshot(0.0)  # it may have parts of it
            return not ranks.any(stop.requested)

        if not job.run_rounds(_unseen, after_round):
            return Finished(folder, None)
        return Finished(folder, job.finish(folder, _unseen, 0.0))


def _unseen(event: str, fields: Mapping[str, object]) -> None:
    """The first process tells it."""


def save(job: Job, folder: RunFolder, seconds: float) -> None:
    """Save the round just made, with what it was made from."""
    found = job.snapshot(seconds)
    meta = {"identity": dict(job.identity), **found.meta}
    save_round(
        folder.rounds,
        job.round,
        tensors=found.tensors,
        meta=meta,
        blobs=found.blobs,
        between=found.between,
    )


def check_identity(job: Job, saved: Checkpoint) -> None:
    """Refuse to go on with other data or weights than a round was made from.

    Raises:
        InputError: Something else is read now.
    """
    known: Any = saved.meta.get("identity", {})
    for what, found in job.identity.items():
        if known.get(what) != found:
            raise InputError(
                f"round {saved.number} was saved with other {what}; a run goes on only with the "
                "data and weights it was started with"
            )


def new_folder(config: RunConfig, parent: Path, threads: int) -> RunFolder:
    """A fresh folder under `parent` that says what is run in it, and on what."""
    return _describe(RunFolder.create(parent, config.name), config, threads)


def _describe(folder: RunFolder, config: RunConfig, threads: int) -> RunFolder:
    facts = machine_facts(threads) | {"command": given_command()}
    write_text_atomic(folder.machine, json.dumps(facts, indent=2) + "\n")
    # The config comes last: a folder is a run once it is there.
    write_text_atomic(folder.config, dump_config(config, folder.path))
    return folder


def known_result(folder: RunFolder) -> Finished | None:
    """What a run came to, if it is finished already.

    A damaged summary is as good as none where the last round is saved: it is written again.

    Raises:
        InputError: The summary is of no use, and there is nothing to write it from.
    """
    if not folder.summary.exists():
        return None
    try:
        return Finished(folder, read_summary(folder.summary))
    except DamagedSummaryError as error:
        if latest_round(folder.rounds) is None:
            told = "no saved round is left to write it again from"
            raise InputError(f"{folder.summary}: {error.problem}; {told}") from None
        return None


def set_threads(config: RunConfig) -> int:
    """Give torch the threads that the settings name, all cores by default; returns how many."""
    return use_threads(config.threads or max(1, usable_cores() // local_count()))


def use_threads(threads: int) -> int:
    """Have torch use so many, and all of them one heap; returns how many."""
    share_heap()
    torch.set_num_threads(threads)
    return threads


def recorded_threads(folder: RunFolder) -> int:
    """The thread count a run was started with; other counts give other bits."""
    try:
        threads = json.loads(folder.machine.read_text(encoding="utf-8"))["threads"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder.machine}: cannot be read: {error}") from error
    if not isinstance(threads, int) or threads < 1:
        raise InputError(f"{folder.machine}: threads is {threads!r}; expected a whole number >= 1")
    return threads


def observer(log: EventLog, watch: Observe | None, track: Observe) -> Observe:
    """Writes events to the log, and passes them on."""

    def observe(event: str, fields: Mapping[str, object]) -> None:
        log.log(event, fields)
        track(event, fields)
        if watch is not None:
            watch(event, fields)

    return observe
