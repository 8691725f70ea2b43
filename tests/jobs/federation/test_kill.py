"""Kill -9 at random moments: a resumed run ends with the bits of an uninterrupted one.

Runs are forked from this warm process, so that a run takes seconds and not imports.
"""

import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

from atlas.jobs.runner import resume_run, start_run
from atlas.runs.checkpoint import latest_round
from atlas.runs.events import read_events
from tests.helpers import make_config

FORK = multiprocessing.get_context("fork")
DATA = {"train": 16, "validation": 8, "test": 12, "clients_per_task": 1}
KINDS = {
    "keep_best": {"keep_best": True, "train": {"keep_moments": True}},
    "sampled": {"strategy": "fedavg-body", "sample": 0.5, "absent": "last"},
}


def in_child(function, *arguments):
    process = FORK.Process(target=function, args=arguments)
    process.start()
    return process


def finish(process):
    process.join(timeout=120)
    assert process.exitcode == 0
    return process


def settings(kind, name):
    return make_config(name=name, rounds=6, data=DATA, **KINDS[kind])


def uninterrupted(folder, kind):
    config = settings(kind, "whole")
    began = time.monotonic()
    finish(in_child(start_run, config, folder))
    summary = json.loads((folder / "whole" / "summary.json").read_text())
    return summary["adapters_sha256"], time.monotonic() - began


def kill_and_resume(folder, config, delay):
    """Start a run, kill it after `delay`, resume it; returns its hash and the kill's facts."""
    name = config.name
    run = folder / name
    process = in_child(start_run, config, folder)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    if not (run / "config.yaml").exists():  # killed before it was a run: nothing to lose
        finish(in_child(start_run, config, folder))
        run = folder / (name if (run / "config.yaml").exists() else f"{name}-2")
        return json.loads((run / "summary.json").read_text())["adapters_sha256"], 0, 0
    saved = latest_round(run / "rounds")
    events = read_events(run / "events.jsonl") if (run / "events.jsonl").exists() else []
    finished = sum(event["event"] == "round_finished" for event in events)
    number = saved.number if saved else 0
    finish(in_child(resume_run, run))
    summary = json.loads((run / "summary.json").read_text())
    rounds = [
        e["round"] for e in read_events(run / "events.jsonl") if e["event"] == "round_finished"
    ]
    assert rounds == list(range(1, 7)), "history must hold every round once"
    return summary["adapters_sha256"], number, finished - number


def check_kills(folder, kind, count, seed):
    wanted, seconds = uninterrupted(folder, kind)
    delays = np.random.default_rng(seed).uniform(0.0, 1.05 * seconds, count)
    stages = []
    for i, delay in enumerate(sorted(delays)):
        found, saved, repeated = kill_and_resume(folder, settings(kind, f"run{i}"), float(delay))
        assert found == wanted
        assert 0 <= repeated <= 1, "at most one round may be repeated"
        stages.append(saved)
    return stages


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_killed_runs_resume_to_the_same_bits(tmp_path, kind):
    stages = check_kills(tmp_path, kind, 3, seed=1)
    assert max(stages) > 0, "a kill must fall into the rounds"


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_twenty_kills(tmp_path, kind):
    stages = check_kills(tmp_path, kind, 20, seed=2)
    print(f"\n{kind}: 20 of 20 kills resumed to the same adapters; rounds saved: {stages}")
    assert len(set(stages)) > 2
