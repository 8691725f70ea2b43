"""Run a federation in a run folder, from the start or from its last saved round."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atlas.build.federation import Federation, build_federation
from atlas.config.federation import FederationConfig
from atlas.config.load import load_resolved_federation
from atlas.engines.local.engine import Progress
from atlas.errors import InputError
from atlas.federation.exchange.transport import Failure
from atlas.federation.rounds import run_rounds
from atlas.federation.server import ServerState
from atlas.jobs.federation.finish import ask_all, finish
from atlas.jobs.federation.plan import plan_again, plan_start
from atlas.jobs.runner import (
    ENDINGS,
    Finished,
    Watch,
    known_result,
    new_folder,
    observer,
    recorded_threads,
    set_threads,
    use_threads,
)
from atlas.runs.checkpoint import Checkpoint, latest_round, save_round
from atlas.runs.events import EventLog, drop_after_round
from atlas.runs.folder import RunFolder
from atlas.runs.process import stop_after_round


def start_run(
    config: FederationConfig,
    parent: Path,
    watch: Watch | None = None,
    progress: Progress | None = None,
) -> Finished:
    """Start a new run in a fresh folder under `parent`.

    Data and backbones are loaded first, so that bad input leaves no folder behind.
    """
    threads = set_threads(config)
    federation = build_federation(config, progress)
    return _carry_on(federation, new_folder(config, parent, threads), watch)


def resume_run(
    path: Path, watch: Watch | None = None, progress: Progress | None = None
) -> Finished:
    """Go on with a run from its last saved round; of a finished run the summary is returned."""
    folder = RunFolder.open(path)
    if (done := known_result(folder)) is not None:
        return done
    config = load_resolved_federation(folder.config)
    use_threads(recorded_threads(folder))
    return _carry_on(build_federation(config, progress), folder, watch)


def _carry_on(federation: Federation, folder: RunFolder, watch: Watch | None) -> Finished:
    began = time.perf_counter()
    notify = None if watch is None else partial(watch, "stopping", {})
    with folder.lock(), stop_after_round(notify) as stop:
        saved = latest_round(folder.rounds)
        before = 0.0
        if saved is not None:
            # The plan first: it decides how large the adapters are that are put back.
            plan_again(federation, folder)
            before = restore(federation, saved)
        if folder.events.exists():
            drop_after_round(folder.events, federation.state.round, ENDINGS)
        with EventLog(folder.events) as log:
            observe = observer(log, watch)
            observe("started" if saved is None else "resumed", _facts(federation))
            if saved is None:
                plan_start(federation, folder, observe)

            def after_round(state: ServerState) -> bool:
                # Events first: a saved round must never be without its history.
                log.sync()
                save(federation, folder, before + time.perf_counter() - began)
                return not stop.requested

            done = run_rounds(
                federation.plan, federation.state, federation.engine, observe, after_round
            )
            if not done:
                observe("stopped", {"round": federation.state.round})
                return Finished(folder, None)
            seconds = before + time.perf_counter() - began
            summary = finish(federation, folder, observe, seconds)
            # Late: training can use the memory that the library for drawing takes.
            from atlas.report.figures.run import plot_run

            plot_run(folder)
            return Finished(folder, summary)


def _facts(federation: Federation) -> dict[str, object]:
    return {
        "rounds": federation.plan.rounds,
        "after": federation.state.round,
        "strategy": federation.plan.strategy.name,
        "tasks": {m.id: m.task.name for h in federation.holders.values() for m in h.members},
        "cohorts": {
            name: {"clients": list(cohort.clients), "modules": list(cohort.layout.modules)}
            for name, cohort in federation.state.cohorts.items()
        },
    }


def save(federation: Federation, folder: RunFolder, seconds: float) -> None:
    """Save the round just finished: the server's adapters and every client's own state."""
    state = federation.state
    blobs = ask_all(federation, "save", {})
    tensors = {
        f"{backbone}|{name}": value
        for backbone, cohort in state.cohorts.items()
        for name, value in cohort.tensors.items()
    }
    meta = {
        "identity": federation.identity,
        "seconds": seconds,
        "examples": state.examples,
        "bytes": state.ledger.totals,
        "split": state.ledger.split,
        "refused": state.refused,
        "failures": state.failures,
    }
    save_round(folder.rounds, state.round, tensors=tensors, meta=meta, blobs=blobs)


def restore(federation: Federation, saved: Checkpoint) -> float:
    """Put a saved round back; returns the seconds the run had taken by then."""
    state = federation.state
    meta: Any = saved.meta
    for what, found in federation.identity.items():
        if meta.get("identity", {}).get(what) != found:
            raise InputError(
                f"round {saved.number} was saved with other {what}; a run goes on only with the "
                "data and backbone it was started with"
            )
    try:
        for backbone, cohort in state.cohorts.items():
            for name, value in cohort.tensors.items():
                cohort.tensors[name] = _fitting(saved.tensors[f"{backbone}|{name}"], value)
        state.round = saved.number
        state.examples = dict(meta["examples"])
        state.ledger.totals = dict(meta["bytes"])
        state.ledger.split |= meta["split"]
        state.refused, state.failures = list(meta["refused"]), list(meta["failures"])
        blobs = {client: saved.blobs[client] for client in federation.holders}
        seconds = float(meta["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"round {saved.number} does not fit this run: {error}") from error
    for client, reply in sorted(federation.engine.ask("load", blobs).items()):
        if isinstance(reply, Failure):
            raise InputError(f"round {saved.number}, client {client}: {reply.reason}")
    return seconds


def _fitting(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if value.shape != like.shape or value.dtype != like.dtype:
        raise ValueError(f"a tensor has shape {tuple(value.shape)}, not {tuple(like.shape)}")
    return value.to(like.device)
