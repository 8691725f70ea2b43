"""Whole runs on the tiny backbone, through the jobs behind the command line."""

import json
import multiprocessing
import os
import signal
import time

import jsonschema
import psutil
import pytest
import torch

from atlas.backbones.load import load_backbone
from atlas.build.federation import build_federation
from atlas.config.load import load_resolved
from atlas.errors import InputError
from atlas.federation.rounds import run_round
from atlas.jobs.runner import Finished, resume_run, start_run
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder, schema
from tests.helpers import make_config

DATA = {"train": 16, "validation": 8, "test": 12, "clients_per_task": 1}
FORK = multiprocessing.get_context("fork")


def small(**changes):
    return make_config(**{"data": DATA, "rounds": 2, **changes})


def unfinished(folder, **changes):
    """A run that was killed just before its summary was written."""
    run = start_run(small(**changes), folder).folder
    run.summary.unlink()
    return run


@pytest.mark.pictures
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy": "local", "alone": False},
        {"strategy": "fedavg-body"},
        {"strategy": "pooled"},
        {"keep_best": True},
        {"adapter": {"ranks": {"order-1": [1, 2, 3, 4]}}},
    ],
)
def test_summaries_follow_their_schema(tmp_path, changes):
    finished = start_run(small(**changes), tmp_path)
    written = json.loads(finished.folder.summary.read_text())
    assert written == finished.summary
    jsonschema.validate(written, schema())
    pools = changes.get("strategy") == "pooled"
    assert ("alone" in written) == (changes.get("alone", True) and not pools)
    assert sorted(written["score"]["clients"]) == ["order-1", "paraphrase-1", "sentiment-1"]
    assert sorted(p.name for p in finished.folder.adapters.iterdir()) == sorted(
        written["score"]["clients"]
    )
    assert (finished.folder.plots / "clients.png").stat().st_size > 5000


def test_the_resolved_config_is_saved_and_runs_again_to_the_same_bits(tmp_path):
    first = start_run(small(), tmp_path)
    again = start_run(load_resolved(first.folder.config), tmp_path)
    assert again.folder.path.name == "small-2", "a run is never overwritten"
    assert again.summary["adapters_sha256"] == first.summary["adapters_sha256"]
    other = start_run(small(seed=1), tmp_path)
    assert other.summary["adapters_sha256"] != first.summary["adapters_sha256"]


def test_a_finished_run_can_be_finished_again(tmp_path):
    first = start_run(small(), tmp_path)
    assert resume_run(first.folder.path).summary == first.summary
    first.folder.summary.unlink()
    again = resume_run(first.folder.path)
    assert again.summary["adapters_sha256"] == first.summary["adapters_sha256"]
    assert again.summary["bytes"] == first.summary["bytes"]
    names = [event["event"] for event in read_events(first.folder.events)]
    assert names.count("tested") == 3, "every client's test is told once"


def test_a_run_goes_on_only_with_the_data_it_was_started_with(tmp_path):
    file = tmp_path / "mood.csv"
    rows = [f"{'good' if i % 2 else 'bad'} thing {i},{i % 2}" for i in range(40)]
    file.write_text("\n".join(["text,label", *rows]))
    config = small(
        tasks={"mood": {"text": ["text"], "labels": ["bad", "good"]}},
        clients=[{"id": "ann", "task": "mood", "data": str(file)}],
        data={},
    )
    run = start_run(config, tmp_path).folder
    run.summary.unlink()
    file.write_text("\n".join(["text,label", *rows[:-1], "another thing,1"]))
    with pytest.raises(InputError, match="saved with other data"):
        resume_run(run.path)
    file.write_text("\n".join(["text,label", *rows]))
    assert resume_run(run.path).summary is not None


def test_a_run_without_any_usable_reply_fails_and_says_why(tmp_path, monkeypatch):
    from atlas.engines.local import engine as local

    def broken(*arguments):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(local, "fit_group", broken)
    with pytest.raises(RuntimeError, match="no client ever gave a usable reply.*out of memory"):
        start_run(small(alone=False), tmp_path)


def interrupt_after_first_round(config, folder):
    seen = []

    def watch(event, fields):
        seen.append(event)
        if event == "round_finished" and fields["round"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    finished = start_run(config, folder, watch)
    os._exit(0 if finished.summary is None and "stopping" in seen else 3)


def test_ctrl_c_ends_after_a_saved_round_and_resume_goes_on(tmp_path):
    whole = start_run(small(rounds=3), tmp_path / "whole")
    process = FORK.Process(target=interrupt_after_first_round, args=(small(rounds=3), tmp_path))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == 0
    run = tmp_path / "small"
    assert sorted(p.name for p in (run / "rounds").iterdir()) == ["0001"]
    assert read_events(run / "events.jsonl")[-1]["event"] == "stopped"
    assert resume_run(run).summary["adapters_sha256"] == whole.summary["adapters_sha256"]


def hold_lock(path, locked):
    with RunFolder.open(path).lock():
        locked.set()
        time.sleep(60)


def test_a_run_that_is_running_is_locked(tmp_path):
    run = unfinished(tmp_path)
    locked = FORK.Event()
    process = FORK.Process(target=hold_lock, args=(run.path, locked))
    process.start()
    try:
        assert locked.wait(timeout=20)
        with pytest.raises(InputError, match=f"process {process.pid}"):
            resume_run(run.path)
    finally:
        process.kill()
        process.join()
    assert isinstance(resume_run(run.path), Finished)


def test_a_run_on_two_cores_resumes_to_the_same_bits(tmp_path, two_cores):
    config = small(rounds=3, threads=2, data={**DATA, "clients_per_task": 3})
    whole = start_run(config, tmp_path / "whole")

    def crash(event, fields):
        if event == "round_started" and fields["round"] == 2:
            raise OSError("lost power")

    with pytest.raises(OSError, match="lost power"):
        start_run(config, tmp_path / "part", crash)
    resumed = resume_run(tmp_path / "part" / "small")
    assert resumed.summary["adapters_sha256"] == whole.summary["adapters_sha256"]


def test_resume_forces_the_recorded_threads(tmp_path):
    run = unfinished(tmp_path, threads=2)
    torch.set_num_threads(1)
    try:
        resume_run(run.path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    run.summary.unlink()
    run.machine.write_text("{}")
    with pytest.raises(InputError, match=r"machine\.json"):
        resume_run(run.path)


def test_a_checkpoint_of_another_shape_is_refused_and_nothing_is_lost(tmp_path):
    run = unfinished(tmp_path)
    before = {p: p.read_bytes() for p in run.rounds.rglob("*") if p.is_file()}
    text = run.config.read_text()
    run.config.write_text(text.replace("rank: 3", "rank: 2"))
    with pytest.raises(InputError, match="does not fit this run"):
        resume_run(run.path)
    assert before == {p: p.read_bytes() for p in run.rounds.rglob("*") if p.is_file()}


def test_backbone_hash_and_hooks_are_as_before_the_run(tmp_path):
    backbone = load_backbone("tiny")
    before = backbone.fingerprint()
    start_run(small(keep_best=True), tmp_path)
    assert backbone.fingerprint() == before
    modules = list(backbone.model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in modules)


def test_memory_is_flat_over_fifty_rounds():
    federation = build_federation(small(rounds=60, keep_best=True))
    process = psutil.Process()

    def rounds(count):
        for _ in range(count):
            run_round(federation.plan, federation.state, federation.engine, lambda e, f: None)
        return process.memory_info().rss

    before = rounds(10)  # allocators and caches fill up first
    assert rounds(50) - before < 8 * 2**20


def test_user_clients_with_their_own_backbones_form_cohorts_of_their_own(tmp_path):
    rows = "".join("text,label\n" if i == 0 else f"{'good' if i % 2 else 'bad'} thing {i},{i % 2}\n"
                   for i in range(41))  # fmt: skip
    (tmp_path / "one.csv").write_text(rows)
    (tmp_path / "two.csv").write_text(rows.replace("thing", "idea"))
    config = small(
        tasks={"mood": {"text": ["text"], "labels": ["bad", "good"]}},
        clients=[
            {"id": "ann", "task": "mood", "data": str(tmp_path / "one.csv")},
            {"id": "bob", "task": "mood", "data": str(tmp_path / "two.csv"),
             "backbone": "tiny-causal"},
        ],
    )  # fmt: skip
    federation = build_federation(config)
    assert sorted(federation.state.cohorts) == ["tiny", "tiny-causal"]
    finished = start_run(config, tmp_path)
    assert sorted(finished.summary["score"]["clients"]) == ["ann", "bob"]
