"""Verbs that use a memory run's models: generate, predict, eval, export; a federation on one."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import atlas
from atlas.backbones.memory_lm import AtlasForCausalLM
from atlas.cli import app
from atlas.config.load import dump_config, load_config
from atlas.errors import InputError
from atlas.jobs.runner import start_run
from tests.helpers import make_config
from tests.jobs.memory.test_memory_runs import TINY

LINE = "the old man and the sea and the boy who came with him to the shore\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run on text, `shakespeare`, and one on pairs, `recall`."""
    place = tmp_path_factory.mktemp("runs")
    (place / "text.txt").write_text(LINE * 100)
    keys = ("task.vocabulary", "task.pairs", "train.steps", "train.lr")
    small = [*(key for key in TINY if not key.startswith(keys)), "train.steps=20", "train.lr=0.02"]
    small += ["model.blocks=2", "objective=lm", "task.tokenizer={kind: bytes}"]
    small += ["task.arithmetic=null"]
    text = f"task.file={place / 'text.txt'}"
    start_run(load_config("shakespeare", ["size=quick", *small, text]), place)
    start_run(load_config("recall", [*TINY, "train.steps=2"]), place)
    return place


def call(runs, *words, **more):
    return CliRunner().invoke(app, [*words, "--out", str(runs)], **more)


def told(runs, *words, **more):
    done = call(runs, *words, "--json", **more)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def model_of(runs, arm="memory"):
    return AtlasForCausalLM.from_pretrained(runs / "shakespeare" / "models" / arm).eval()


def greedy(model, text, count):
    tokens = list(text.encode())
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1, :256].argmax()))
    return bytes(tokens[-count:]).decode(errors="replace")


def test_text_is_written_from_a_prompt(runs):
    (found,) = told(
        runs, "generate", "shakespeare", "--prompt", "the old", "--tokens", "12",
        "--temperature", "0",
    )  # fmt: skip
    assert found["text"] == greedy(model_of(runs), "the old", 12)
    assert found["arm"] == "memory" and found["remembered"] == 7 + 12
    arguments = ("generate", "shakespeare", "--prompt", "the old", "--tokens", "12")
    shown = call(runs, *arguments, "--temperature", "0", "--arm", "window")
    assert shown.stdout == "the old" + greedy(model_of(runs, "window"), "the old", 12) + "\n"
    drawn = [
        told(runs, *arguments, "--temperature", "5", "--seed", seed)[0]["text"]
        for seed in ("1", "1", "2")
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_document_is_read_into_memory_first(runs, tmp_path):
    (tmp_path / "document.txt").write_text(LINE * 9)
    arguments = ["generate", "shakespeare", "--prompt", "the", "--tokens", "9", "--temperature"]
    (found,) = told(runs, *arguments, "0", "--read", str(tmp_path / "document.txt"))
    assert found["read"] == len(LINE) * 9
    assert found["text"] == greedy(model_of(runs), LINE * 9 + "the", 9)


def test_lines_go_on_from_each_other(runs):
    found = told(
        runs, "generate", "shakespeare", "--interactive", "--tokens", "6", "--temperature", "0",
        input="the old\nand the\n",
    )  # fmt: skip
    first = greedy(model_of(runs), "the old", 6)
    assert [part["text"] for part in found] == [
        first,
        greedy(model_of(runs), f"the old{first}\nand the", 6),
    ]


def test_what_is_remembered_is_saved_and_taken_up(runs, tmp_path):
    state = str(tmp_path / "state.safetensors")
    arguments = ["--temperature", "0", "--tokens", "6"]
    (first,) = told(
        runs, "generate", "shakespeare", "--prompt", "the old", "--save", state, *arguments
    )
    (second,) = told(
        runs, "generate", "shakespeare", "--prompt", " sea", "--load", state, *arguments
    )
    assert second["text"] == greedy(model_of(runs), f"the old{first['text']} sea", 6)


def test_next_tokens_are_predicted(runs):
    done = call(runs, "predict", "shakespeare", "the old", "--json")
    found = json.loads(done.stdout)
    with torch.no_grad():
        logits = model_of(runs)(torch.tensor([list(b"the old")])).logits[0, -1, :256]
    best = logits.softmax(-1).topk(5)
    told = [bytes([i]).decode(errors="replace") for i in best.indices]
    assert [part["token"] for part in found["next"]] == told
    assert [part["share"] for part in found["next"]] == pytest.approx(best.values.tolist())
    assert found["answer"] == greedy(model_of(runs), "the old", 32)
    assert "likeliest continuation" in call(runs, "predict", "shakespeare", "the old").stdout


def test_a_text_file_is_scored(runs, tmp_path):
    (tmp_path / "a.txt").write_text(LINE * 2)
    found = json.loads(call(runs, "eval", "shakespeare", str(tmp_path / "a.txt"), "--json").stdout)
    tokens = torch.tensor([list((LINE * 2).encode())])
    with torch.no_grad():
        loss = float(model_of(runs)(tokens, labels=tokens).loss)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(loss / math.log(2), rel=1e-5)
    assert found["loss"] < math.log(256), "better than a guess"
    shown = call(runs, "eval", "shakespeare", str(tmp_path / "a.txt")).stdout
    assert "bits per byte" in shown and "a guess among so many tokens" in shown


def test_an_export_loads_with_and_without_trust(runs, tmp_path):
    done = call(runs, "export", "shakespeare", "--to", str(tmp_path / "model"), "--arm", "window")
    assert done.exit_code == 0 and "model of window" in done.stdout
    mine = model_of(runs, "window")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "model")("the old")["input_ids"]])
    assert torch.equal(loaded(ids).logits, mine(ids).logits)
    # In a process that has never imported Atlas, the folder itself leads to its classes.
    code = (
        "import transformers as t; m = t.AutoModelForCausalLM.from_pretrained("
        f"{str(tmp_path / 'model')!r}, trust_remote_code=True); print(type(m).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(tmp_path / "hub")},
    )
    assert done.stdout.split() == ["AtlasForCausalLM"], done.stderr
    # A folder with a model is as good as its run.
    (found,) = told(runs, "generate", str(tmp_path / "model"), "--prompt", "the", "--tokens", "3")
    assert found["arm"] is None and found["text"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "recall", "--prompt", "a"], "trained on recall, whose tokens are keys"),
        (["predict", "recall", "a"], "no text"),
        (["generate", "shakespeare"], "--prompt: missing; or --interactive"),
        (["generate", "shakespeare", "--prompt", ""], "nothing to go on from"),
        (["generate", "shakespeare", "--prompt", "a", "--arm", "no"], "arms: memory, window"),
        (["generate", "shakespeare", "--prompt", "a", "--temperature", "-1"], "allowed: 0"),
        (["generate", "shakespeare", "--prompt", "a", "--top-p", "0"], "--top-p 0"),
        (["generate", "shakespeare", "--prompt", "a", "--read", "no.txt"], "no.txt: cannot be"),
        (["generate", "no-such", "--prompt", "a"], "no-such: no such run or model"),
        (["predict", "shakespeare", "a", "b"], "a memory model reads one"),
        (["predict", "shakespeare", "a", "--client", "c"], "has no clients; allowed: --arm"),
        (["eval", "shakespeare", "f.txt", "--client", "c"], "--client c: a memory run"),
        (["export", "shakespeare", "--to", "x", "--merged"], "nothing to merge"),
        (["export", "shakespeare", "--to", "x", "--client", "c"], "has no clients"),
    ],
)
def test_what_does_not_fit_is_refused(runs, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    error = call(runs, *words).exception
    assert isinstance(error, InputError)
    assert message in str(error)


def test_the_python_door_writes_too(runs):
    writer = atlas.open_run("shakespeare", runs).generate(temperature=0.0)
    assert "".join(writer.answer("the old", 5)) == greedy(model_of(runs), "the old", 5)
    (runs / "other").mkdir()
    (runs / "other" / "config.yaml").write_text(dump_config(make_config()))
    with pytest.raises(InputError, match="kind: federation; this needs a memory run"):
        atlas.open_run("other", runs).generate()
    error = call(runs, "predict", "other", "a text").exception
    assert "--client: missing" in str(error)
    error = call(runs, "predict", "other", "a text", "--arm", "memory").exception
    assert "a federation has clients and no arms" in str(error)


def test_a_federation_runs_on_a_model_trained_here(runs, tmp_path):
    """The memory is a backbone: `backbone.name=RUN/models/memory`."""
    place = runs / "shakespeare" / "models" / "memory"
    settings = [
        "size=quick", f"backbone.name={place}", "rounds=1", "threads=1", "data.train=8",
        "data.clients_per_task=1",
        "data.validation=4", "data.test=4", "train.epochs=1",
    ]  # fmt: skip
    summary = start_run(load_config("demo", settings), tmp_path).summary
    assert not summary["failures"] and not summary["refused"]
    for found in summary["budgets"].values():  # what its steps keep is measured, not guessed
        assert found["valid"] and found["measured"] <= found["used"] <= found["budget"]
    assert 0 <= summary["score"]["mean"] <= 1
    adapter = next((tmp_path / "demo" / "adapters").iterdir())
    assert (adapter / "adapter_model.safetensors").is_file()
