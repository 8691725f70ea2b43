"""A finished run goes on to a later end."""

import json
import shutil

import pytest

import atlas
from atlas.config.load import load_resolved
from atlas.errors import InputError
from atlas.jobs.runner import resume_run, start_run
from atlas.jobs.show import describe_run
from atlas.runs.events import read_events
from tests.helpers import make_config

DATA = {"clients_per_task": 2, "train": 16, "validation": 8, "test": 12}


def small(**changes):
    return make_config(**{"data": DATA, "strategy": "atlas", **changes})


def without_times(summary):
    return {key: value for key, value in summary.items() if key != "seconds"}


@pytest.mark.parametrize("keep", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_longer_run_is_the_one_that_was_long_from_the_start(tmp_path, keep):
    train = {"lr": 0.01, "keep_moments": keep}
    first = start_run(small(rounds=1, train=train), tmp_path / "short")
    whole = start_run(small(rounds=3, train=train), tmp_path / "long")
    again = resume_run(first.folder.path, overrides=["rounds=3"])
    assert without_times(again.summary) == without_times(whole.summary)
    assert again.summary["adapters_sha256"] != first.summary["adapters_sha256"]
    assert load_resolved(again.folder.config).rounds == 3
    events = [event["event"] for event in read_events(again.folder.events)]
    assert events.count("round_finished") == 3
    assert events.count("finished") == 1 and events.count("tested") == 6
    assert events.count("resumed") == 1


def test_only_the_length_may_change_and_only_forward(tmp_path):
    finished = start_run(small(rounds=2), tmp_path)
    kept = finished.folder.config.read_bytes(), finished.folder.summary.read_bytes()
    for text, words in (
        ("rounds=2", "has made 2 of 2 already"),
        ("rounds=1", "beyond"),
        ("train.lr=0.1", "allowed: rounds"),
        ("rounds=many", "rounds"),
        ("train.steps=9", "allowed: rounds"),
    ):
        with pytest.raises(InputError, match=words):
            resume_run(finished.folder.path, overrides=[text])
        assert kept == (
            finished.folder.config.read_bytes(),
            finished.folder.summary.read_bytes(),
        ), text


def test_a_damaged_summary_is_written_again(tmp_path):
    finished = start_run(small(rounds=1, strategy="local"), tmp_path)
    file = finished.folder.summary
    whole = file.read_text()
    wrong = json.loads(whole)
    wrong["score"]["clients"][next(iter(wrong["score"]["clients"]))] = "good"
    for damage in (whole[:100], json.dumps(wrong)):
        file.write_text(damage)
        with pytest.raises(InputError, match=f"summary.json: .*atlas resume {file.parent}"):
            describe_run(finished.folder)
        again = resume_run(file.parent)
        assert without_times(again.summary) == without_times(finished.summary)
        assert describe_run(finished.folder)["summary"] == again.summary
    shutil.rmtree(finished.folder.rounds)
    file.write_text(whole[:100])
    with pytest.raises(InputError, match="not JSON: .*no saved round is left"):
        resume_run(file.parent)
    assert file.read_text() == whole[:100], "nothing is trained again unasked"


def test_a_run_from_python_goes_on(tmp_path):
    small = ["backbone.name=tiny", "adapter.blocks=1", "ranks.method=fixed", "strategy=local"]
    sizes = {"data": {"train": 8, "validation": 8, "test": 8}}
    run = atlas.run("demo", *small, rounds=1, out=tmp_path, **sizes)
    assert run.resume().summary["rounds"] == 1
    assert run.resume(rounds=2).summary["rounds"] == 2


def test_a_memory_run_goes_on(tmp_path):
    tiny = ["threads=1", "task.vocabulary=16", "task.length=16", "task.pairs=2", "task.test=16"]
    tiny += ["model.width=32", "model.blocks=1", "model.feed_forward=48", "train.round_steps=5"]
    tiny += ["train.schedule=constant", "train.warmup=0", "train.floor.points=[[0,0.1]]"]
    run = atlas.run("recall", *tiny, "train.steps=5", out=tmp_path / "short")
    whole = atlas.run("recall", *tiny, "train.steps=12", out=tmp_path / "long")
    run.resume("train.steps=6")
    longer = run.resume("train.steps=12").summary
    assert longer["steps"] == 12
    assert longer["arms"]["memory"]["loss"] == whole.summary["arms"]["memory"]["loss"]
    with pytest.raises(InputError, match="allowed: train.steps"):
        run.resume(rounds=9)
