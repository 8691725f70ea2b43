"""A study ends at whatever moment it is told to, and goes on from there."""

import os
import signal
import subprocess
import sys
import time

import pytest

from atlas.jobs.study.cases import plan_study
from atlas.jobs.study.compare import run_study
from atlas.jobs.study.workers import _listen, run_apart

TINY = [
    "backbone.name=tiny", "rounds=1", "threads=1", "data.train=8", "data.validation=8",
    "data.test=8", "data.clients_per_task=1", "ranks.method=fixed", "report=false",
]  # fmt: skip
LONG = 300.0
"""Seconds in which all of a study has ended, on a machine with much else to do."""


def make_study(*overrides):
    return plan_study("demo", [*TINY, "strategy=local,fedavg", *overrides], ceiling=False)


def done(tmp_path):
    return len(list(tmp_path.rglob("summary.json")))


@pytest.mark.parametrize("moment", ["round_started", "round_finished", "tested"])
def test_a_signal_after_the_last_round_began_lets_no_other_run_begin(tmp_path, moment):
    """A run that has nothing left to stop would swallow it."""
    study, begun = make_study(), []

    def watch(event, fields):
        if event == moment and len(begun) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    told = run_study(study, tmp_path, lambda number, *_: begun.append(number), watch)
    assert told is None and begun == [1] and done(tmp_path) == 1
    assert len(run_study(study, tmp_path)["rows"]) == 2


@pytest.mark.slow
def test_workers_let_no_other_run_begin_either(tmp_path):
    study, news = make_study("seed=0"), []

    def stop_at_the_last_round(run, said):
        news.append(said)
        if said == "round 1":
            os.kill(os.getpid(), signal.SIGTERM)

    assert not run_apart(study, tmp_path / study.name, 2, stop_at_the_last_round)
    assert news.count("began") == 1 and done(tmp_path) == 1
    assert run_apart(study, tmp_path / study.name, 2, lambda *said: None)


PLAY = """
import os, signal, sys
from pathlib import Path
from atlas.jobs.study import compare, workers
from tests.jobs.study.test_stopping import make_study

def strike(before):
    def struck(*given, **named):
        os.killpg(0, signal.SIGTERM)
        return before(*given, **named)
    return struck

moment, place = sys.argv[1], Path(sys.argv[2])
study = make_study("seed=0,1")
if moment == "start":
    first = workers.subprocess.Popen
    class Popen(first):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            os.killpg(0, signal.SIGTERM)
    workers.subprocess.Popen = Popen
if moment == "draw":
    compare.plot_study = strike(compare.plot_study)
if moment == "between":
    compare.read_outcome = strike(compare.read_outcome)
def say(number, news):
    print(news, flush=True)
    if news == moment:
        os.killpg(0, signal.SIGTERM)
whole = moment in ("draw", "between") or workers.run_apart(study, place / study.name, 2, say)
compare.run_study(study, place) if whole else sys.exit(130)
"""


def wait_until_gone(group):
    """Seconds it takes until nobody is left of a group of processes."""
    began = time.monotonic()
    while time.monotonic() - began < LONG:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return time.monotonic() - began
        time.sleep(0.1)
    raise AssertionError("somebody is still there")


MOMENTS = ["began"]
MOMENTS += [pytest.param(m, marks=pytest.mark.slow) for m in ("start", "between", "draw")]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_to_all_processes_ends_all_of_them_and_the_study_goes_on(tmp_path, moment):
    words = [sys.executable, "-c", PLAY, moment, str(tmp_path)]
    process = subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = process.communicate(timeout=LONG)
        wait_until_gone(process.pid)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode in (130, -signal.SIGTERM), errors
    assert "Traceback" not in errors
    if moment in ("start", "began"):
        assert process.returncode == 130 and done(tmp_path) < 4
    study = make_study("seed=0,1")
    assert len(run_study(study, tmp_path)["rows"]) == 4


def test_what_a_worker_prints_beside_its_news_does_not_silence_it():
    import queue

    said = queue.Queue()
    lines = ["a library's words\n", "[1]\n", '{"number": 1, "said": "began"}\n', '{"numb']
    _listen(iter(lines), said)
    assert [said.get(), said.get()] == [{"number": 1, "said": "began"}, None] and said.empty()
