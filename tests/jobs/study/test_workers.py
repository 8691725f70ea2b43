"""A study in several processes is the same study."""

import json
import os
import signal

import pytest

from atlas.errors import InputError
from atlas.jobs.study.cases import plan_study
from atlas.jobs.study.compare import run_study
from atlas.jobs.study.workers import deal, run_apart, with_threads
from tests.jobs.study.test_alone import TINY


def make_study(*overrides):
    return plan_study("demo", [*TINY, "strategy=local,fedavg", *overrides], ceiling=False)


def test_a_worker_takes_whole_seeds():
    study = make_study("seed=0,1,2")
    shares = deal(study, 2)
    seeds = [[config.seed for _, _, config in share] for share in shares]
    assert seeds == [[0, 0, 2, 2], [1, 1]], "a seed is finished before the next begins"
    numbers = sorted(number for share in shares for number, _, _ in share)
    assert numbers == list(range(1, len(study.jobs()) + 1))
    assert len(deal(study, 8)) == 3


def test_threads_are_shared_unless_the_settings_name_them():
    open_, named = (make_study("seed=0,1", *more) for more in (["threads=null"], ["threads=5"]))
    assert {config.threads for config in with_threads(open_, 3).configs} == {3}
    assert {config.threads for config in with_threads(named, 3).configs} == {5}


def test_workers_find_what_one_process_finds(tmp_path):
    study = make_study("seed=0,1")
    news = []
    assert run_apart(study, tmp_path / study.name, 2, lambda *said: news.append(said))
    ended = sorted(number for number, said in news if said == "ended")
    assert ended == list(range(1, len(study.jobs()) + 1))
    apart = run_study(study, tmp_path)
    together = run_study(study, tmp_path / "one")
    for result in (apart, together):
        for row in result["rows"]:
            row.pop("seconds")
    assert json.dumps(apart, sort_keys=True) == json.dumps(together, sort_keys=True)


SIGNALS = [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_workers_after_their_round_and_the_study_goes_on(tmp_path, capfd, number):
    """As `kill` or a job's time limit would, it reaches the parent alone."""
    study = make_study("seed=0", "rounds=12")
    news = []

    def stop_at_once(run, said):
        news.append((run, said))
        if said == "round 1" and len([one for _, one in news if one == said]) == 1:
            os.kill(os.getpid(), number)

    assert not run_apart(study, tmp_path / study.name, 2, stop_at_once)
    assert "Traceback" not in capfd.readouterr().err
    first = [said for _, said in news]
    assert "stopped" in first and "round 12" not in first
    after = []
    assert run_apart(study, tmp_path / study.name, 2, lambda *said: after.append(said))
    begun = next(run for run, said in news if said == "round 1")
    # What was saved is not done again.
    assert (begun, "round 1") not in after and (begun, "round 12") in after


def test_a_worker_that_cannot_run_is_told_of(tmp_path):
    study = make_study("seed=0,1")
    first, *rest = study.configs
    broken = first.model_copy(update={"strategy": "no-such"})
    study = study.__class__(study.name, study.cases, (broken, *rest), study.ceilings)
    news = []
    with pytest.raises(InputError, match="no-such"):
        run_apart(study, tmp_path, 2, lambda *said: news.append(said))
    assert (1, "began") in news and any("failed" in said for _, said in news)


def test_a_run_that_fails_in_a_worker_fails_with_its_own_words(tmp_path):
    study = make_study("seed=0,1")
    (tmp_path / study.name).write_text("a file where a folder should be")
    with pytest.raises((RuntimeError, InputError), match="cannot hold|Error"):
        run_apart(study, tmp_path / study.name, 2, lambda *said: None)
