"""Memory runs in run folders: results, resuming, refusals."""

import json
import re
import signal
import subprocess
import sys

import jsonschema
import pytest
import torch
from typer.testing import CliRunner

from atlas.backbones.memory_lm import AtlasForCausalLM
from atlas.build.memory import build_memory
from atlas.cli import app, main
from atlas.config.load import load_config
from atlas.errors import InputError
from atlas.jobs import runner
from atlas.jobs.runner import resume_run, start_run
from atlas.jobs.show import describe_run, list_runs
from atlas.runs.events import read_events
from atlas.runs.folder import read_summary, schema

TINY = [
    "threads=1", "task.vocabulary=16", "task.length=16", "task.pairs=2", "task.test=64",
    "model.width=32", "model.blocks=1", "model.feed_forward=48", "model.window=3",
    "train.steps=12", "train.round_steps=5", "train.observe_every=2", "train.lr=0.01",
]  # fmt: skip


def settings(*more):
    return load_config("recall", [*TINY, *more])


def without_times(summary):
    plain = json.loads(json.dumps(summary))
    for found in (plain, *plain["arms"].values()):
        del found["seconds"]
    return plain


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return start_run(settings("arms=[memory,window,detached]"), tmp_path_factory.mktemp("runs"))


def test_the_summary_is_as_described(finished):
    summary = read_summary(finished.folder.summary)
    jsonschema.validate(summary, schema("memory"))
    assert list(summary["accuracy"]) == ["detached", "memory", "window"]
    assert summary["steps"] == 12 and summary["chance"] == 1 / 8
    assert summary["gates"]["floor"] == 0.05
    gates = summary["gates"]["per_layer"]["layers.0"]
    assert set(gates) == {"alpha", "eta", "theta", "mix"}
    assert summary["gates"]["mean"] == pytest.approx(gates["mix"])
    assert summary["state"]["norms"]["M"] > 0
    arms = summary["arms"]
    assert summary["parameters"] == arms["memory"]["parameters"] == arms["detached"]["parameters"]
    assert arms["window"]["parameters"] == pytest.approx(summary["parameters"], rel=0.01)
    assert len({arm["loss"] for arm in arms.values()}) == 3


def test_events_and_pictures_tell_the_history(finished):
    events = read_events(finished.folder.events)
    rounds = [event for event in events if event["event"] == "round_finished"]
    assert [event["step"] for event in rounds] == [5, 10, 12]
    seen = [e for e in events if e["event"] == "trained" and e["arm"] == "memory"]
    assert [event["step"] for event in seen] == [2, 4, 6, 8, 10, 12]
    assert seen[0]["memory"]["layers.0/gate.mix.mean"] > 0.3
    assert (finished.folder.plots / "training.png").stat().st_size > 10_000


@pytest.mark.parametrize("arm", ["memory", "window"])
def test_a_saved_model_answers_as_the_trained_one(finished, arm):
    model = AtlasForCausalLM.from_pretrained(finished.folder.models / arm)
    lines = build_memory(settings()).held_out("test")
    with torch.no_grad():
        right = model(lines.ids).logits.argmax(-1) == lines.targets
    answers = int((lines.targets >= 0).sum())
    assert int(right.sum()) / answers == finished.summary["accuracy"][arm]


def test_the_same_seed_gives_the_same_bits_and_another_one_others(finished, tmp_path):
    again = start_run(settings("arms=[memory,window,detached]"), tmp_path)
    assert without_times(again.summary) == without_times(finished.summary)
    other = start_run(settings("arms=[memory]", "seed=1"), tmp_path)
    assert other.summary["arms"]["memory"] != finished.summary["arms"]["memory"]


def test_an_arm_alone_is_the_same_as_beside_others(finished, tmp_path):
    alone = start_run(settings("arms=[window]"), tmp_path).summary
    hashes = [s["arms"]["window"]["weights_sha256"] for s in (alone, finished.summary)]
    assert hashes[0] == hashes[1]
    assert alone["gates"]["mean"] is None and alone["state"] == {"norms": {}, "per_layer": {}}


class Broken(Exception):
    pass


@pytest.mark.parametrize("round_", [1, 2])
def test_a_run_that_died_goes_on_to_the_same_bits(finished, tmp_path, round_):
    def die(event, fields):
        if event == "trained" and fields["round"] == round_ + 1:
            raise Broken

    config = settings("arms=[memory,window,detached]")
    with pytest.raises(Broken):
        start_run(config, tmp_path, die)
    assert describe_run(finished.folder.__class__(tmp_path / "recall"))["done"] == round_
    resumed = resume_run(tmp_path / "recall")
    assert without_times(resumed.summary) == without_times(finished.summary)
    numbers = [
        e["round"] for e in read_events(resumed.folder.events) if e["event"] == "round_finished"
    ]
    assert numbers == [1, 2, 3]
    assert resume_run(tmp_path / "recall").summary == read_summary(resumed.folder.summary)


def test_a_stop_is_kept_until_the_round_is_saved(finished, tmp_path):
    def interrupt(event, fields):
        if event == "trained" and fields["step"] == 2 and fields["arm"] == "memory":
            signal.raise_signal(signal.SIGINT)

    stopped = start_run(settings("arms=[memory,window,detached]"), tmp_path, interrupt)
    assert stopped.summary is None
    assert describe_run(stopped.folder)["done"] == 1
    resumed = resume_run(stopped.folder.path)
    assert without_times(resumed.summary) == without_times(finished.summary)


LEVELS = [
    "arms=[memory]", "model.rule.gradient=chunk-start", "model.rule.chunk=16",
    "model.local_rules=[{gradient: chunk-start, chunk: 8}]", "model.local_shard=8",
]  # fmt: skip
STAGES = "train.stages=[{until: 0.5, chunk: 16, local: [8]}, {until: 1, chunk: 4, local: [2]}]"


def test_local_memories_and_stages_count_and_are_saved(tmp_path):
    def ending(*more):
        found = start_run(settings(*LEVELS, *more), tmp_path)
        return found.folder, found.summary["arms"]["memory"]["weights_sha256"]

    (staged, with_stages), (_, without) = ending(STAGES), ending()
    assert with_stages != without != ending("model.local_shard=16")[1]
    assert ending("model.feed_forward_kind=continuum")[1] != without
    config = AtlasForCausalLM.from_pretrained(staged.models / "memory").config
    assert config.rule["chunk"] == 4 and config.local_rules[0]["chunk"] == 2


def test_a_run_in_its_second_stage_resumes_to_the_same_bits(tmp_path):
    def die(event, fields):
        if event == "trained" and fields["round"] == 3:
            raise Broken

    whole = start_run(settings(*LEVELS, STAGES), tmp_path / "whole").summary
    with pytest.raises(Broken):
        start_run(settings(*LEVELS, STAGES), tmp_path, die)
    assert without_times(resume_run(tmp_path / "recall").summary) == without_times(whole)


def test_a_round_of_another_model_is_refused(tmp_path):
    def die(event, fields):
        if event == "trained" and fields["round"] == 2:
            raise Broken

    with pytest.raises(Broken):
        start_run(settings("arms=[memory]"), tmp_path, die)
    config = tmp_path / "recall" / "config.yaml"
    config.write_text(config.read_text().replace("feed_forward: 48", "feed_forward: 64"))
    with pytest.raises(InputError, match="round 1 does not fit this run"):
        resume_run(tmp_path / "recall")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.heads=3", "model.width: must be a multiple of twice model.heads"),
        ("arms=[memory,memory]", "arms: each may be given once"),
        ("arms=[memry]", "did you mean memory"),
        ("train.floor.points=[[0,0.1],[5,0.2],[5,0.3]]", "must begin at 0 and rise"),
        ("train.floor.points=[[0,1.0]]", "too large"),
        ("train.floor.points=[[5,0.1]]", "must begin at 0 and rise"),
        ("objective=episodes", "objective: episodes; allowed with task.name: text only"),
        ("task.pairs=40", "vocabulary: 16; allowed: at least 82"),
        ("task.length=5", "length: 5; allowed: at least 8"),
        ("model.rule.learner=newton-schulz", "allowed with gradient: chunk-start only"),
        ("rounds=3", "rounds: unknown key"),
        ("task.name=text", "vocabulary: not a setting of text, but of recall"),
        ("task.file=a.txt", "file: not a setting of recall, but of text"),
        ("model.local_shard=8", "local_shard: 8; allowed: a number with local_rules"),
        ("train.stages=[{until: 0.5, chunk: 8}, {until: 0.5, chunk: 4}]", "must rise"),
        ("train.stages=[{until: 1, chunk: 8, local: [4]}]", "local: chunks [4]"),
    ],
)
def test_what_cannot_be_run_leaves_no_folder(tmp_path, change, words):
    found = CliRunner().invoke(app, ["run", "recall", *TINY, change, "--out", str(tmp_path / "r")])
    assert isinstance(found.exception, InputError)
    assert words in str(found.exception)
    assert not (tmp_path / "r").exists()


@pytest.fixture
def text_folder(tmp_path, monkeypatch):
    (tmp_path / "data" / "text").mkdir(parents=True)
    words = "the old man and the sea and the boy who came with him to the shore\n"
    for name in ("shakespeare.txt", "monte_cristo.txt"):
        (tmp_path / "data" / "text" / name).write_text(words * 200)
    monkeypatch.setenv("ATLAS_DATA", str(tmp_path / "data"))


BYTES = ["objective=lm", "task.tokenizer=null", "task.arithmetic=null"]


def test_a_text_is_learned_from_a_file_in_the_data_folder(text_folder, tmp_path):
    small = ["model.width=16", "model.blocks=1", "task.length=64", "task.test=4", "threads=1"]
    small += ["train.batch=16", "train.optimiser=adamw"]
    steps = ["train.steps=16", "train.round_steps=8", "arms=[memory]", "train.lr=0.02"]
    config = load_config("shakespeare", ["size=quick", *small, *steps, *BYTES])
    assert config.task.file == tmp_path / "data" / "text" / "shakespeare.txt"
    summary = start_run(config, tmp_path).summary
    assert summary["task"] == "text"
    assert summary["loss"] < 4.0 < 5.5, "a guess among all bytes is 5.5"
    rounds = read_events(tmp_path / "shakespeare" / "events.jsonl")
    losses = [e["loss"]["memory"] for e in rounds if e["event"] == "round_finished"]
    assert losses[1] < losses[0]


def test_a_text_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv("ATLAS_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"task.file: .*shakespeare.txt: No such file"):
        build_memory(load_config("shakespeare", []))


def test_the_command_line_runs_shows_and_lists(tmp_path):
    out = ["--out", str(tmp_path)]
    ran = CliRunner().invoke(app, ["run", "recall", *TINY, *out])
    assert ran.exit_code == 0, ran.output
    for words in ("recall, 12 steps", "memory", "window", "chance", "12.5", "models:"):
        assert words in ran.output
    shown = CliRunner().invoke(app, ["show", "recall", "--json", *out])
    jsonschema.validate(json.loads(shown.output), schema("memory"))
    listed = CliRunner().invoke(app, ["show", *out])
    assert "recall" in listed.output and "3/3" in listed.output
    assert [row["kind"] for row in list_runs(tmp_path)] == ["memory"]


@pytest.mark.parametrize(
    "verb", [["plan", "recall"], ["join", "recall", "file.jsonl"]], ids=lambda verb: verb[0]
)
def test_verbs_of_federations_say_that_they_are(finished, verb):
    place = str(finished.folder.path.parent)
    more = [] if verb[0] == "plan" else ["--out", place]
    found = CliRunner().invoke(app, [*verb, *more])
    assert isinstance(found.exception, InputError)
    assert "kind: memory; this needs a run of kind federation" in str(found.exception)


def text_run(tmp_path, monkeypatch):
    """A run on a text that stops after its first round; its text file and its folder."""
    text = tmp_path / "text.txt"
    text.write_text("the memory learns while it reads. " * 200)
    lines = [key for key in TINY if not key.startswith(("task.vocabulary", "task.pairs"))]
    config = load_config("shakespeare", ["size=quick", *lines, *BYTES, f"task.file={text}"])
    original = runner.save

    def save_and_die(*args):
        original(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        start_run(config, tmp_path / "runs")
    monkeypatch.setattr(runner, "save", original)
    return text, next((tmp_path / "runs").iterdir())


def test_a_replaced_text_is_refused_and_the_old_one_goes_on(tmp_path, monkeypatch):
    text, folder = text_run(tmp_path, monkeypatch)
    kept = text.read_bytes()
    text.write_bytes(kept.replace(b"learns", b"forgot"))
    before = sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file())
    with pytest.raises(InputError, match="round 1 was saved with other data"):
        resume_run(folder)
    after = sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file())
    assert [pair for pair in after if pair[0].suffix != ".lock"] == [
        pair for pair in before if pair[0].suffix != ".lock"
    ], "a refusal changes nothing"
    monkeypatch.setattr(sys, "argv", ["atlas", "resume", str(folder)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    text.write_bytes(kept)
    assert resume_run(folder).summary["steps"] == 12


def test_a_saved_model_says_how_to_load_it_and_loads_that_way(finished):
    place = finished.folder.models / "memory"
    card = (place / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    code = code.replace('"this folder"', repr(str(place))) + "\nprint(type(model).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["AtlasForCausalLM"], done.stderr


def test_the_end_of_a_memory_run_is_told_in_words(finished, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["atlas", "show", str(finished.folder.path)])
    with pytest.raises(SystemExit):
        main()
    out = " ".join(capsys.readouterr().out.split())
    assert "a guess 12.5 %" in out and "64 sequences of 2 questions" in out
    assert "training.png" in out and f"models: {finished.folder.models}" in out
    assert "import atlas.backbones.memory_lm" in out


def test_a_memory_that_starts_shut_is_held_open_by_its_floor(tmp_path):
    """Without a floor the share stays where a bias of -8 puts it; the saved model has that bias."""
    shut = ("arms=[memory]", "model.gates.share=-8", "train.steps=5")
    shares = {}
    for name, floor in (("floor", "[[0,0.3]]"), ("none", "[[0,0.0]]")):
        done = start_run(settings(*shut, f"train.floor.points={floor}"), tmp_path / name)
        shares[name] = read_summary(done.folder.summary)["gates"]["mean"]
    assert shares["floor"] > 0.3 and shares["none"] < 0.01
    saved = AtlasForCausalLM.from_pretrained(done.folder.path / "models" / "memory")
    bias = saved.model.layers[0].mixer.share_proj.bias
    assert bias is not None and -8.2 < float(bias.detach().mean()) < -7.8
    plain = build_memory(settings("arms=[memory]")).models["memory"]
    assert plain.model.layers[0].mixer.share_proj.bias is None
