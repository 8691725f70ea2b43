"""Several processes that make one memory run: the losses of one process, its folder, its end."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys

import pytest
import torch

from atlas.backbones.memory_lm import AtlasForCausalLM
from atlas.config.load import load_config
from atlas.errors import InputError
from atlas.jobs.runner import resume_run, start_run
from atlas.runs.events import read_events
from tests.jobs.memory.test_memory_runs import TINY

# Not forked from here: threads of other tests could hold what a child waits for.
CLEAN = multiprocessing.get_context("forkserver")
CLEAN.set_forkserver_preload(["atlas.jobs.memory.steps", "tests.jobs.memory.test_processes"])
SMALL = [*TINY, "train.observe_every=1", "arms=[memory]", "task.test=16", "train.batch=8"]
EPISODES = [
    "objective=episodes", "task.length=24", "task.test=4", "episodes.batches=2", "train.steps=4",
    "train.round_steps=2", "train.observe_every=1", "train.batch=4", "model.width=16",
    "model.blocks=1", "model.window=4", "model.feed_forward=24", "arms=[memory]", "threads=1",
]  # fmt: skip


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def as_rank(rank, port, function, arguments):
    """What torchrun tells a process, told to a forked one."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    function(*arguments)


def in_two(function, *arguments, codes=(0, 0)):
    port = free_port()
    both = [
        CLEAN.Process(target=as_rank, args=(rank, port, function, arguments)) for rank in (0, 1)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(timeout=120)
    assert [process.exitcode for process in both] == list(codes)


def losses(folder):
    events = read_events(folder / "events.jsonl")
    return [(e["step"], e["loss"], e["norm"]) for e in events if e["event"] == "trained"]


def weights(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return {arm: found["weights_sha256"] for arm, found in summary["arms"].items()}


def check_same(found, wanted, tolerance=1e-5):
    assert [step for step, *_ in found] == [step for step, *_ in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one[1:] == pytest.approx(other[1:], abs=tolerance, rel=tolerance)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same run in one process, with the whole batch."""
    return start_run(load_config("recall", SMALL), tmp_path_factory.mktemp("alone")).folder.path


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_have_the_losses_of_one(alone, tmp_path, parallel):
    config = load_config("recall", [*SMALL, f"train.parallel={parallel}"])
    in_two(start_run, config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["recall"], "the first alone writes"
    check_same(losses(tmp_path / "recall"), losses(alone))
    # The model is whole, and the same but for rounding.
    folders = (alone, tmp_path / "recall")
    pair = [AtlasForCausalLM.from_pretrained(folder / "models/memory") for folder in folders]
    for one, other in zip(*(model.parameters() for model in pair), strict=True):
        assert torch.allclose(one, other, atol=1e-3)


def unequal(path):
    """A text in which words, and so masks, crowd at one end."""
    path.write_text(("one two three four five six. " * 9 + "." * 90 + "\n") * 30)
    return f"task.file={path}"


def test_episodes_with_unequal_answers_are_weighed_right(tmp_path):
    text = unequal(tmp_path / "text.txt")
    config = load_config(
        "shakespeare", ["size=quick", *EPISODES, text, "task.tokenizer={kind: bytes}"]
    )
    one = start_run(config, tmp_path / "one").folder.path
    in_two(start_run, config, tmp_path / "two")
    check_same(losses(tmp_path / "two" / one.name), losses(one))


def stop_in_first(config, folder):
    """One process is asked to stop; both must end after the same round."""

    def watch(event, fields):
        if event == "trained" and fields["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    assert start_run(config, folder, watch).summary is None


@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_all_stop_together_and_resume_to_the_same_bits(tmp_path, parallel):
    config = load_config("recall", [*SMALL, f"train.parallel={parallel}"])
    in_two(start_run, config, tmp_path / "whole")
    in_two(stop_in_first, config, tmp_path / "cut")
    assert not (tmp_path / "cut/recall/summary.json").exists()
    in_two(resume_run, tmp_path / "cut/recall")
    assert weights(tmp_path / "cut/recall") == weights(tmp_path / "whole/recall")


def diverge(config, folder):
    from atlas.memory.training import loop

    original = loop.NextToken.backward

    def backward(self, model, work, floors, watched):
        read = original(self, model, work, floors, watched)
        broken = os.environ["RANK"] == "1"  # only one of them sees it by itself
        return read._replace(loss=float("nan")) if broken else read

    loop.NextToken.backward = backward
    with pytest.raises(loop.Diverged):
        start_run(config, folder)


def test_a_loss_that_is_no_number_in_one_stops_all(tmp_path):
    in_two(diverge, load_config("recall", SMALL), tmp_path)


def refuse(config, folder, words):
    with pytest.raises(InputError, match=words):
        start_run(config, folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.batch=7", "train.batch: 7; allowed: a multiple of 2"),
        ("train.optimiser=muon", "need whole matrices"),
    ],
)
def test_what_cannot_be_shared_is_refused(tmp_path, change, words):
    config = load_config("recall", [*SMALL, "train.parallel=fsdp", change])
    in_two(refuse, config, tmp_path, words)
    assert not list(tmp_path.iterdir())


def test_torchrun_makes_a_run_through_the_same_command(alone, tmp_path):
    """As in the docs: one table, one folder, exit code 0."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "-m", "atlas", "run", "recall", *SMALL]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("recall, 12 steps") == 1
    check_same(losses(tmp_path / "recall"), losses(alone))
