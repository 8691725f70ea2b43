"""Kill -9 at random moments: a resumed run ends with the bits of an uninterrupted one.

Runs are forked from this warm process, so that a run takes seconds and not imports.
"""

import json
import multiprocessing
import os
import signal
import time

import numpy as np

from atlas.jobs.runner import resume_run, start_run
from atlas.runs.checkpoint import latest_round
from atlas.runs.events import read_events

FORK = multiprocessing.get_context("fork")


def in_child(function, *arguments):
    process = FORK.Process(target=function, args=arguments)
    process.start()
    return process


def finish(process):
    process.join(timeout=240)
    assert process.exitcode == 0
    return process


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


def uninterrupted(folder, config, bits):
    began = time.monotonic()
    finish(in_child(start_run, config, folder))
    return bits(summary_of(folder / config.name)), time.monotonic() - began


def kill_and_resume(folder, config, delay, bits):
    """Start a run, kill it after `delay`, resume it; returns its bits and the kill's facts."""
    name = config.name
    run = folder / name
    process = in_child(start_run, config, folder)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    if not (run / "config.yaml").exists():  # killed before it was a run: nothing to lose
        finish(in_child(start_run, config, folder))
        run = folder / (name if (run / "config.yaml").exists() else f"{name}-2")
        return bits(summary_of(run)), 0, 0
    saved = latest_round(run / "rounds")
    events = read_events(run / "events.jsonl") if (run / "events.jsonl").exists() else []
    finished = sum(event["event"] == "round_finished" for event in events)
    number = saved.number if saved else 0
    finish(in_child(resume_run, run))
    rounds = [
        e["round"] for e in read_events(run / "events.jsonl") if e["event"] == "round_finished"
    ]
    assert rounds == list(range(1, config.rounds + 1)), "history must hold every round once"
    return bits(summary_of(run)), number, finished - number


def check_kills(folder, settings, bits, count, seed):
    """Kill `count` runs at random moments and resume them.

    Args:
        folder: Where runs go.
        settings: Gives the settings of a run of some name.
        bits: What of a summary must be the same to the bit.
        count: Kills.
        seed: Of their moments.

    Returns:
        The rounds that were saved when each was killed.
    """
    wanted, seconds = uninterrupted(folder, settings("whole"), bits)
    delays = np.random.default_rng(seed).uniform(0.0, 1.05 * seconds, count)
    stages = []
    for i, delay in enumerate(sorted(delays)):
        found, saved, repeated = kill_and_resume(folder, settings(f"run{i}"), float(delay), bits)
        assert found == wanted
        assert 0 <= repeated <= 1, "at most one round may be repeated"
        stages.append(saved)
    return stages
