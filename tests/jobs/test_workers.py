"""A study in several processes is the same study."""

import json

import pytest

from atlas.jobs.compare import run_study
from atlas.jobs.study import plan_study
from atlas.jobs.workers import deal, run_apart, with_threads
from tests.jobs.test_alone import TINY


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


def test_a_worker_that_cannot_run_is_told_of(tmp_path):
    study = make_study("seed=0,1")
    first, *rest = study.configs
    broken = first.model_copy(update={"strategy": "no-such"})
    study = study.__class__(study.name, study.cases, (broken, *rest), study.ceilings)
    with pytest.raises(RuntimeError, match="exit code 2"):
        run_apart(study, tmp_path, 2, lambda *said: None)
