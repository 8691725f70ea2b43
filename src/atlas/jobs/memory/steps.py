"""Train models with and without a memory in a run folder, from the start or a saved round."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atlas.backbones.memory_lm.sizes import save_model
from atlas.build.memory import MemoryRun, build_memory
from atlas.config.memory import MemoryConfig
from atlas.engines.local.engine import Progress
from atlas.errors import InputError
from atlas.jobs.memory.summary import summarise
from atlas.jobs.runner import (
    ENDINGS,
    Finished,
    Watch,
    new_folder,
    observer,
    recorded_threads,
    set_threads,
    use_threads,
)
from atlas.memory.training.loop import Score
from atlas.runs.checkpoint import Checkpoint, latest_round, save_round
from atlas.runs.events import EventLog, drop_after_round
from atlas.runs.folder import RunFolder, write_summary
from atlas.runs.process import stop_after_round


@dataclass
class _Done:
    """How far a run is: rounds and steps made, seconds by arm."""

    round: int
    steps: int
    seconds: dict[str, float]


def start_memory(
    config: MemoryConfig, parent: Path, watch: Watch | None, progress: Progress | None
) -> Finished:
    """Start a new run; the models are made first, so that bad input leaves no folder behind."""
    threads = set_threads(config)
    run = build_memory(config)
    return _carry_on(run, new_folder(config, parent, threads), watch, progress)


def resume_memory(
    config: MemoryConfig, folder: RunFolder, watch: Watch | None, progress: Progress | None
) -> Finished:
    """Go on with an unfinished run from its last saved round."""
    use_threads(recorded_threads(folder))
    return _carry_on(build_memory(config), folder, watch, progress)


def _carry_on(
    run: MemoryRun, folder: RunFolder, watch: Watch | None, progress: Progress | None
) -> Finished:
    notify = None if watch is None else partial(watch, "stopping", {})
    with folder.lock(), stop_after_round(notify) as stop:
        saved = latest_round(folder.rounds)
        done = _Done(0, 0, dict.fromkeys(run.learners, 0.0)) if saved is None else _load(run, saved)
        drop_after_round(folder.events, done.round, ENDINGS)
        with EventLog(folder.events) as log:
            observe = observer(log, watch)
            observe("started" if saved is None else "resumed", _facts(run, done))
            while done.steps < run.config.train.steps:
                if stop.requested:
                    observe("stopped", {"round": done.round})
                    return Finished(folder, None)
                _round(run, done, observe, progress)
                # Events first: a saved round must never be without its history.
                log.sync()
                _save(run, folder, done)
            summary = _finish(run, folder, done, observe)
    # Late, as in `run`: whoever runs a federation imports this file too.
    from atlas.report.figures.memory import plot_memory

    plot_memory(folder)
    return Finished(folder, summary)


def _facts(run: MemoryRun, done: _Done) -> dict[str, object]:
    return {
        "kind": run.config.kind,
        "rounds": run.config.rounds,
        "after": done.round,
        "steps": run.config.train.steps,
        "task": run.config.task.name,
        "arms": list(run.learners),
        "chance": run.sequences.chance,
        "parameters": {arm: learner.parameters for arm, learner in run.learners.items()},
    }


def _round(run: MemoryRun, done: _Done, observe: Watch, progress: Progress | None) -> None:
    """Some steps of every arm, on the same sequences, and how well each does after them."""
    own, number = run.config.train, done.round + 1
    last = min(done.steps + own.round_steps, own.steps)
    held_out = run.held_out("validation")
    run.prepare(done.steps)
    scores: dict[str, Score] = {}
    began = time.perf_counter()
    for arm, learner in run.learners.items():
        start = time.perf_counter()
        for step in range(done.steps, last):
            watched = (step + 1) % own.observe_every == 0
            made = learner.step(step, run.training(step), watched=watched)
            if progress is not None:
                progress(arm, step + 1 - done.steps, last - done.steps)
            if watched:
                about = {"round": number, "arm": arm, "step": step + 1}
                observe("trained", about | made._asdict())
        done.seconds[arm] += time.perf_counter() - start
        scores[arm] = learner.score(held_out, last)
    done.round, done.steps = number, last
    observe(
        "round_finished",
        {
            "round": number,
            "step": last,
            "loss": {arm: score.loss for arm, score in scores.items()},
            "accuracy": {arm: score.accuracy for arm, score in scores.items()},
            "seconds": time.perf_counter() - began,
        },
    )


def _save(run: MemoryRun, folder: RunFolder, done: _Done) -> None:
    tensors = {
        f"{arm}|{name}": value
        for arm, learner in run.learners.items()
        for name, value in learner.tensors().items()
    }
    meta = {"steps": done.steps, "seconds": done.seconds}
    save_round(folder.rounds, done.round, tensors=tensors, meta=meta, blobs={})


def _load(run: MemoryRun, saved: Checkpoint) -> _Done:
    """Put a saved round back."""
    meta: Mapping[str, Any] = saved.meta
    try:
        for arm, learner in run.learners.items():
            learner.load(_of_arm(saved, arm))
        seconds = {arm: float(meta["seconds"][arm]) for arm in run.learners}
        return _Done(saved.number, int(meta["steps"]), seconds)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"round {saved.number} does not fit this run: {error}") from error


def _of_arm(saved: Checkpoint, arm: str) -> dict[str, torch.Tensor]:
    start = f"{arm}|"
    return {n.removeprefix(start): t for n, t in saved.tensors.items() if n.startswith(start)}


def _finish(run: MemoryRun, folder: RunFolder, done: _Done, observe: Watch) -> dict[str, Any]:
    """Test every arm once, save the models and write the summary."""
    run.prepare(done.steps)
    lines = run.held_out("test")
    scores = {arm: learner.score(lines, done.steps) for arm, learner in run.learners.items()}
    for arm, score in scores.items():
        observe("tested", {"arm": arm, **score._asdict()})
        save_model(run.models[arm], folder.models / arm)
    summary = summarise(run, scores, done.seconds)
    write_summary(folder.summary, summary)
    observe("finished", {"accuracy": summary["accuracy"], "seconds": summary["seconds"]})
    return summary
