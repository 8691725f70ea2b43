"""Episodic runs in run folders: what they save, tell, refuse, and how they go on."""

import json
import sys

import jsonschema
import pytest
import torch
from transformers import AutoTokenizer

from atlas.backbones.memory_lm import AtlasForCausalLM
from atlas.backbones.memory_lm.sizes import without_memory
from atlas.build.memory import build_memory, model_settings
from atlas.cli import main
from atlas.config.load import load_config
from atlas.errors import InputError
from atlas.jobs.memory.steps import MemoryJob
from atlas.jobs.runner import resume_run, start_run
from atlas.memory.training import loop
from atlas.memory.training.loop import Diverged
from atlas.runs.events import read_events
from atlas.runs.folder import read_summary, schema
from tests.jobs.memory.test_memory_runs import Broken, without_times

TINY = [
    "size=quick", "threads=1", "task.file=null", "task.characters=40000", "task.length=12",
    "task.test=5", "task.tokenizer.size=300", "task.arithmetic.modulus=7", "model.width=16",
    "model.blocks=1", "model.feed_forward=16", "model.window=4", "train.batch=3", "train.steps=8",
    "train.round_steps=3", "train.observe_every=2", "episodes.batches=3", "episodes.through=2",
]  # fmt: skip
NAMES = (
    "M_norm", "M_std", "M_max", "S_norm", "gate_mean", "gate_std", "gate_collapse_risk",
    "fourier_concentration", "circular_fit", "grokking_phase",
)  # fmt: skip


def settings(*more):
    return load_config("shakespeare", [*TINY, *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = settings("train.alerts.risk=0.2", "episodes.between=keep")
    return start_run(config, tmp_path_factory.mktemp("runs"))


def test_the_summary_is_as_described(finished):
    summary = read_summary(finished.folder.summary)
    jsonschema.validate(summary, schema("memory"))
    assert summary["objective"] == "episodes"
    for part in ("retrieval", "lookup"):
        found = summary[part]
        gap = found["own"] - found["emptied"]
        assert found["against_emptied"]["difference"] == pytest.approx(gap)
        assert found["questions"] > 0
    assert summary["accuracy"]["memory"] == summary["retrieval"]["own"]
    window = summary["arms"]["window"]
    assert window["perplexity"] == pytest.approx(
        torch.tensor(window["loss"]).exp().item(), rel=1e-4
    )
    assert 0 < window["bits_per_byte"] < window["loss"] / 0.69
    assert summary["phases"][0] == {"name": "memorisation", "step": 3}
    assert "too few points" in summary["together"]["verdict"]


def test_events_have_the_names_that_are_looked_for(finished):
    events = read_events(finished.folder.events)
    seen = [e for e in events if e["event"] == "trained" and e["arm"] == "memory"]
    assert [event["step"] for event in seen] == [2, 4, 6, 8]
    assert all(name in seen[1] for name in NAMES), [n for n in NAMES if n not in seen[1]]
    for name in ("softmax_collapse", "scaling_cosine", "storage_loss", "retrieval_loss"):
        assert isinstance(seen[0][name], float)
    assert [event["gate_floor"] for event in seen] == [0.3, 0.1, 0.1, 0.05]
    rounds = [e for e in events if e["event"] == "round_finished"]
    for name in ("masked_word_accuracy", "math_accuracy", "overall_accuracy", "lookup_accuracy"):
        assert set(rounds[0][name]) == {"memory", "window"}
    alerts = [e for e in events if e["event"] == "alert"]
    assert [(e["arm"], e["layer"], e["measure"]) for e in alerts] == [
        ("memory", "layers.0", "risk")
    ]
    assert alerts[0]["value"] > alerts[0]["threshold"] == 0.2


def test_pictures_are_drawn_of_all_of_it(finished):
    for name in ("training", "memory", "sums"):
        assert (finished.folder.plots / f"{name}.png").stat().st_size > 10_000


def test_a_model_is_saved_with_its_tokenizer_and_answers_as_it_did(finished):
    place = finished.folder.models / "memory"
    tokenizer, model = AutoTokenizer.from_pretrained(place), AtlasForCausalLM.from_pretrained(place)
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.mask_token is not None and tokenizer("<|6|>")["input_ids"] != []
    run = build_memory(settings())
    assert run.reading.tokens.identity == f"{len(tokenizer)}-{run.reading.tokens.identity[-16:]}"
    lines = run.reading.text.held_out("test", 5)
    with torch.no_grad():
        logits = model(lines.ids).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), lines.targets.flatten())
    assert float(loss) == pytest.approx(finished.summary["loss"], rel=1e-5)


def test_the_best_round_is_kept_as_a_model(finished):
    rounds = [e for e in read_events(finished.folder.events) if e["event"] == "round_finished"]
    for arm, found in finished.summary["arms"].items():
        losses = {event["step"]: event["retrieval_loss"][arm] for event in rounds}
        best = min(losses, key=lambda step: (losses[step], step))
        assert found["best"] == {"step": best, "loss": losses[best]}
        saved = AtlasForCausalLM.from_pretrained(finished.folder.best / arm)
        last = AtlasForCausalLM.from_pretrained(finished.folder.models / arm)
        pairs = zip(saved.parameters(), last.parameters(), strict=True)
        same = all(torch.equal(a, b) for a, b in pairs)
        assert same == (best == 8)


@pytest.mark.parametrize("round_", [1, 2])
def test_a_run_that_died_goes_on_to_the_same_bits(finished, tmp_path, round_):
    def die(event, fields):
        if event == "trained" and fields["round"] == round_ + 1:
            raise Broken

    with pytest.raises(Broken):
        start_run(settings("train.alerts.risk=0.2", "episodes.between=keep"), tmp_path, die)
    resumed = resume_run(tmp_path / "shakespeare")
    assert without_times(resumed.summary) == without_times(finished.summary)
    told = [
        [{k: v for k, v in e.items() if k not in ("time", "seconds")} for e in read_events(path)
         if e["event"] in ("trained", "alert", "round_finished")]
        for path in (resumed.folder.events, finished.folder.events)
    ]  # fmt: skip
    assert told[0] == told[1]


def test_a_loss_that_is_no_number_ends_the_run_and_names_what_is_kept(
    finished, tmp_path, monkeypatch, capsys
):
    config = settings("train.alerts.risk=0.2", "episodes.between=keep")
    original, calls = loop.MemoryTrainer._finish_gradients, []

    def broken(self, watched):
        calls.append(1)
        norm, found = original(self, watched)
        return (float("nan") if len(calls) == 9 else norm), found

    monkeypatch.setattr(loop.MemoryTrainer, "_finish_gradients", broken)
    with pytest.raises(Diverged, match=r"rounds/0001 \(step 3\), from which atlas resume") as error:
        start_run(config, tmp_path)
    assert "memory: the gradient norm is nan at step 6" in str(error.value)
    folder = tmp_path / "shakespeare"
    assert [e["event"] for e in read_events(folder / "events.jsonl")][-1] == "diverged"
    assert (folder / "rounds" / "0001").is_dir() and not (folder / "summary.json").exists()
    monkeypatch.setattr(sys, "argv", ["atlas", "resume", str(folder)])
    calls[:] = [0] * 2  # two steps later it happens once more
    monkeypatch.setattr(MemoryJob, "_kept", lambda self: "kept")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1 and "failed: Diverged" in capsys.readouterr().err
    monkeypatch.setattr(loop.MemoryTrainer, "_finish_gradients", original)
    assert without_times(resume_run(folder).summary) == without_times(finished.summary)


def test_a_memory_that_is_kept_is_another_training(finished, tmp_path):
    reset = start_run(settings("arms=[memory]"), tmp_path).summary
    hashes = [s["arms"]["memory"]["weights_sha256"] for s in (reset, finished.summary)]
    assert hashes[0] != hashes[1]


def test_sums_alone_and_the_next_token_alone(tmp_path):
    sums = start_run(settings("arms=[memory]", "task.arithmetic.share=1"), tmp_path).summary
    assert (
        "retrieval" not in sums and "perplexity" not in sums and "masked_word_accuracy" not in sums
    )
    assert sums["accuracy"]["memory"] == sums["lookup"]["own"] and sums["chance"] == 1 / 7
    plain = start_run(settings("arms=[memory]", "objective=lm"), tmp_path).summary
    assert "retrieval" not in plain and "lookup" not in plain and plain["perplexity"] > 1
    assert 0 <= plain["math_accuracy"] <= 1
    for summary in (sums, plain):
        jsonschema.validate(json.loads(json.dumps(summary)), schema("memory"))


@pytest.mark.parametrize(
    ("preset", "least", "most"),
    [("shakespeare", 9e6, 11e6), ("dumas", 9e6, 11e6), ("omega-300m", 290e6, 310e6)],
)
def test_presets_have_the_size_they_are_said_to_have(preset, least, most):
    config = load_config(preset, [])
    vocabulary = config.task.tokenizer.size + 104
    own = model_settings(config, vocabulary)
    with torch.device("meta"):
        for one in (own, without_memory(own)):
            assert least < sum(p.numel() for p in AtlasForCausalLM(one).parameters()) < most


def test_omega_is_trained_without_episodes(tmp_path):
    small = [key for key in TINY if "arithmetic" not in key and "episodes" not in key]
    config = load_config("omega-300m", [*small, "model.heads=1"])
    assert config.objective == "lm" and config.model.rule.window == 4
    summary = start_run(config, tmp_path).summary
    assert summary["perplexity"] > 1 and "phases" not in summary


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.batch=1", "train.batch: 1; allowed with objective episodes: 2 or more"),
        (
            "model.rule={gradient: chunk-start, learner: descent, retention: elastic-net}",
            "elastic-net; allowed with objective episodes: l2, lq, kl",
        ),
        ("task.tokenizer.kind=bytes", "size: not a setting of kind bytes"),
        ("task.tokenizer={kind: folder}", "folder: to be given with kind: folder"),
        ("task.arithmetic.modulus=9", "modulus: 9; allowed: a prime"),
        ("task.length=900", "tokens are read in one go"),
        ("task.length=4", "task.length: 4; allowed: at least 5, for a sum"),
        ("episodes.masked=0", "episodes.masked"),
    ],
)
def test_what_cannot_be_run_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        build_memory(settings(change))
