"""Grokking runs in run folders: results, resuming, words, refusals."""

import json

import jsonschema
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from atlas.build.grokking import build_grokking
from atlas.cli import app
from atlas.config.load import load_config
from atlas.errors import InputError
from atlas.jobs.runner import resume_run, start_run
from atlas.jobs.show import describe_run, list_runs
from atlas.memory.training.grokking.trainer import ArithmeticTrainer
from atlas.ops.fourier import neuron_share, residue_order
from atlas.report.tables.grokking import GrokkingLine
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder, read_summary, schema

TINY = [
    "threads=1", "task.modulus=11", "model.width=16", "train.steps=12", "train.round_steps=5",
    "train.observe_every=2",
]  # fmt: skip


def settings(*more):
    return load_config("grokking", [*TINY, *more])


def without_times(summary):
    plain = json.loads(json.dumps(summary))
    for found in (plain, *plain["arms"].values()):
        del found["seconds"]
    return plain


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return start_run(settings(), tmp_path_factory.mktemp("runs"))


def test_the_summary_is_as_described(finished):
    summary = read_summary(finished.folder.summary)
    jsonschema.Draft202012Validator.check_schema(schema("grokking"))
    jsonschema.validate(summary, schema("grokking"))
    assert summary["pairs"] == {"learned": 48, "held_out": 73}
    assert summary["task"] == "add mod 11" and summary["chance"] == 1 / 11
    arms = summary["arms"]
    assert summary["test_accuracy"] == arms["grokking"]["test_accuracy"]
    assert summary["control"]["fourier"] == arms["control"]["fourier"]
    assert arms["grokking"]["weights_sha256"] != arms["control"]["weights_sha256"]
    assert summary["phases"][0] == {"name": "memorisation", "step": 2}
    assert summary["jump"] is None


def test_events_tell_the_history_by_name(finished):
    events = read_events(finished.folder.events)
    seen = [e for e in events if e["event"] == "measured" and e["arm"] == "control"]
    assert [event["step"] for event in seen] == [2, 4, 6, 8, 10, 12]
    names = {
        "fourier_concentration", "circular_fit", "grokking_phase", "math_accuracy", "train_loss",
        "train_accuracy", "test_loss", "test_accuracy", "excluded_loss", "restricted_loss",
        "weight_norm", "softmax_collapse", "scaling_cosine", "gradient_norm", "spectra",
    }  # fmt: skip
    assert names <= set(seen[0])
    assert seen[0]["math_accuracy"] == seen[0]["test_accuracy"]
    pictures = {path.name for path in finished.folder.plots.iterdir()}
    assert pictures == {"learning.png", "spectrum.png", "circle.png", "waves.png"}


def test_a_saved_model_is_the_trained_one(finished):
    run = build_grokking(settings())
    model = run.learners["grokking"].model
    weights = load_file(finished.folder.models / "grokking" / "model.safetensors")
    model.load_state_dict(weights)
    found = run.measure("grokking").numbers
    arm = finished.summary["arms"]["grokking"]
    assert found["test_loss"] == arm["test_loss"]
    assert found["fourier_concentration"] == arm["fourier"]["neurons"]


class Broken(Exception):
    pass


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take longer than such runs."""
    monkeypatch.setattr("atlas.report.figures.grokking.plot_grokking", lambda folder: None)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("round_", [1, 2])
def test_a_run_that_died_goes_on_to_the_same_bits(finished, tmp_path, round_):
    def die(event, fields):
        if event == "measured" and fields["round"] == round_ + 1 and fields["arm"] == "control":
            raise Broken

    with pytest.raises(Broken):
        start_run(settings(), tmp_path, die)
    assert describe_run(RunFolder(tmp_path / "grokking"))["done"] == round_
    resumed = resume_run(tmp_path / "grokking")
    assert without_times(resumed.summary) == without_times(finished.summary)

    def measured(folder):
        events = [e for e in read_events(folder.events) if e["event"] == "measured"]
        return [{k: v for k, v in event.items() if k != "time"} for event in events]

    key = lambda event: (event["arm"], event["step"])  # noqa: E731
    assert sorted(measured(resumed.folder), key=key) == sorted(measured(finished.folder), key=key)


@pytest.mark.usefixtures("undrawn")
def test_a_finished_run_can_be_made_longer(finished, tmp_path):
    short = start_run(settings("train.steps=5"), tmp_path)
    longer = resume_run(short.folder.path, overrides=["train.steps=12"])
    assert without_times(longer.summary) == without_times(finished.summary)
    with pytest.raises(InputError, match=r"allowed: train\.steps"):
        resume_run(short.folder.path, overrides=["train.lr=0.1"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task.modulus=96", r"task\.modulus: 96; allowed: a prime"),
        ("task.operations=[add,add]", r"task\.operations"),
        ("task.operations=[power]", r"task\.operations"),
        ("task.fraction=1", r"task\.fraction"),
        ("arms=[control,control]", "arms"),
        ("train.gradient=across", r"train\.gradient"),
        ("train.optimiser=sgd", r"train\.optimiser"),
        ("train.observe_every=13", r"observe_every"),
        ("train.betas=[0.9,1.0]", r"train\.betas"),
        ("model.kind=rnn", r"model\.kind"),
        ("train.clip=1", r"train\.clip"),
    ],
)
def test_bad_settings_are_refused_before_a_folder_is_made(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        start_run(settings(change), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_width_that_heads_do_not_share_is_refused():
    with pytest.raises(InputError, match=r"model\.width: must be a multiple of 4"):
        settings("model.kind=transformer", "model.width=18")


@pytest.mark.usefixtures("undrawn")
def test_a_loss_that_is_no_number_stops_the_run_and_keeps_what_was_saved(tmp_path, monkeypatch):
    plain = ArithmeticTrainer.step

    def broken(self, number, *, watched=False):
        made = plain(self, number, watched=watched)
        return made._replace(loss=float("nan")) if number == 7 else made

    monkeypatch.setattr(ArithmeticTrainer, "step", broken)
    with pytest.raises(RuntimeError, match="the loss is nan at step 8; round 1 is kept"):
        start_run(settings(), tmp_path)
    assert describe_run(RunFolder(tmp_path / "grokking"))["done"] == 1
    monkeypatch.setattr(ArithmeticTrainer, "step", plain)
    assert resume_run(tmp_path / "grokking").summary is not None


def test_the_verbs_say_it_in_words(finished, tmp_path):
    result = CliRunner().invoke(app, ["run", "grokking", *TINY, "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert "add mod 11  48 pairs to learn from, 73 held out" in result.output
    words = " ".join(result.output.split())
    assert "of the held-out pairs right" in words and "has no jump" in words
    assert "atlas resume" in result.output
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "grokking"), "--json"])
    assert without_times(json.loads(shown.stdout)) == without_times(finished.summary)
    rows = list_runs(tmp_path)
    assert [(row["kind"], row["strategy"], row["state"]) for row in rows] == [
        ("grokking", "add mod 11", "finished")
    ]
    everything = CliRunner().invoke(app, ["show", "--out", str(tmp_path)])
    assert everything.exit_code == 0 and "add mod 11" in everything.stdout
    refused = CliRunner().invoke(app, ["plan", "grokking"])
    assert "kind federation" in str(refused.exception)


def test_a_phase_is_told_when_it_begins():
    line = GrokkingLine()
    about = {"arm": "grokking", "step": 10, "grokking_phase": "memorisation"}
    assert line.add("measured", about) is None
    told = line.add("measured", about | {"step": 20, "grokking_phase": "circuit formation"})
    assert told == "  grokking: phase circuit formation, seen at step 20"
    assert line.add("measured", about | {"grokking_phase": "circuit formation"}) is None


FAST = [
    "threads=1", "model.width=128", "train.steps=160", "train.round_steps=160", "train.lr=0.02",
    "train.gradient=perpendicular", "train.weight_decay=0", "train.betas=[0.9,0.99]",
    "train.eps=1e-25", "task.fraction=0.6", "task.modulus=67", "train.observe_every=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def understood(tmp_path_factory):
    config = load_config("grokking", [*FAST, "task.operations=[multiply]"])
    return start_run(config, tmp_path_factory.mktemp("runs"))


def test_it_groks_and_the_control_does_not(understood):
    summary = understood.summary
    assert summary["test_accuracy"] > 0.99
    names = [phase["name"] for phase in summary["phases"]]
    assert names == ["memorisation", "circuit formation", "clean-up", "grokking"]
    assert summary["jump"] is not None
    control = summary["control"]
    assert control["train_accuracy"] > 0.99 and control["test_accuracy"] < 0.2
    assert [phase["name"] for phase in control["phases"]] == ["memorisation"]
    assert control["jump"] is None


def test_products_are_learned_as_waves_over_logarithms_and_not_over_residues(understood):
    weights = load_file(understood.folder.models / "grokking" / "model.safetensors")
    table = weights["table"][:67]
    assert neuron_share(table[residue_order("multiply", 67)]) > 0.8
    assert neuron_share(table) < 0.3
