"""Studies of memory runs: seeds, settings and the models of each run in one table."""

import csv
import io
import json
import statistics

import pytest
from typer.testing import CliRunner

from atlas.cli import app
from atlas.errors import InputError
from atlas.jobs.study import compare, workers
from atlas.jobs.study.cases import plan_study
from atlas.jobs.study.compare import run_study
from atlas.ops.metrics import paired_comparison
from tests.jobs.memory.test_memory_runs import TINY

STEPS = [*TINY, "train.steps=6", "train.round_steps=6"]
FLOORS = "train.floor.points=[[0, 0.0]],[[0, 0.3]]"


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    place = tmp_path_factory.mktemp("studies")
    done = CliRunner().invoke(app, ["compare", "recall", *STEPS, "seed=0,1,2", "--out", str(place)])
    assert done.exit_code == 0, done.output
    (folder,) = place.iterdir()
    return folder, json.loads((folder / "compare.json").read_text()), done.output


def test_models_of_a_run_are_compared_over_seeds(studied):
    folder, result, shown = studied
    assert [(row["keys"]["model"], row["keys"]["seed"]) for row in result["rows"]] == [
        (model, seed) for model in ("memory", "window") for seed in (0, 1, 2)
    ]
    means = {}
    for row in result["rows"]:
        (run,) = folder.glob(f"{row['keys']['seed']}-*/recall/summary.json")
        found = json.loads(run.read_text())["arms"][row["keys"]["model"]]
        assert row["mean"] == found["accuracy"] and row["loss"] == found["loss"]
        means.setdefault(row["arm"], []).append(row["mean"])
    assert list(means) == ["model=memory", "model=window"]
    (test,) = result["tests"]
    assert test == {
        "first": "model=memory", "second": "model=window", "seeds": 3,
        **paired_comparison(means["model=memory"], means["model=window"]),
    }  # fmt: skip
    assert result["majority"] == 1 / 8 and result["ceiling"] is None
    told = statistics.fmean(means["model=window"])
    assert result["tasks"]["recall"]["arms"]["model=window"] == pytest.approx(told)
    for words in ("model", "accuracy", "spread", "share", "chance", "12.5", "p (t)"):
        assert words in shown
    for words in ("MB", "majority", "client", "worst gain"):
        assert words not in shown
    assert (folder / "plots" / "arms.png").stat().st_size > 10_000
    rows = list(csv.DictReader((folder / "compare.csv").open()))
    assert [row["weights_sha256"] for row in rows] == [
        row["weights_sha256"] for row in result["rows"]
    ]


def test_the_study_is_shown_again_and_listed(studied):
    folder, _, shown = studied
    again = CliRunner().invoke(app, ["show", str(folder)])
    assert again.output.strip() in shown
    listed = CliRunner().invoke(app, ["show", "--out", str(folder.parent)])
    assert "model=memory, model=window" in listed.output


def test_settings_are_compared_within_each_model(tmp_path):
    result = run_study(plan_study("recall", [*STEPS, "arms=[memory]", FLOORS]), tmp_path)
    floors = [row["keys"]["train.floor.points"] for row in result["rows"]]
    assert floors == [[[0, 0.0]], [[0, 0.3]]]
    assert len({row["weights_sha256"] for row in result["rows"]}) == 2, "the floor must count"
    assert result["rows"][1]["share"] >= 0.3
    labelled = plan_study(
        "recall",
        [*STEPS, "seed=0,1"],
        ["floor: train.floor.points=[[0,0.3]]", "none: train.clip=9"],
    )
    assert [case.columns["arm"] for case in labelled.cases] == ["floor", "floor", "none", "none"]


def test_a_worker_gives_the_same_run(studied, tmp_path, monkeypatch, capsys):
    _, alone, _ = studied
    config = plan_study("recall", [*STEPS, "seed=0,1,2"]).configs[1].model_dump(mode="json")
    jobs = [{"number": 2, "place": str(tmp_path), "config": config}]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(jobs)))
    workers.main()
    assert [json.loads(line)["said"] for line in capsys.readouterr().out.splitlines()] == [
        "began", "round 1", "ended",
    ]  # fmt: skip
    summary = json.loads((tmp_path / "recall" / "summary.json").read_text())
    known = {
        r["keys"]["model"]: r["weights_sha256"] for r in alone["rows"] if r["keys"]["seed"] == 1
    }
    assert {arm: found["weights_sha256"] for arm, found in summary["arms"].items()} == known


def test_a_stopped_study_goes_on(tmp_path, monkeypatch):
    study = plan_study("recall", [*STEPS, "seed=0,1"])
    original, seen = compare.finish_run, []

    def once(config, *more):
        seen.append(config.seed)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return original(config, *more)

    monkeypatch.setattr(compare, "finish_run", once)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path)
    result = run_study(study, tmp_path)
    assert seen == [0, 1, 0, 1] and len(result["rows"]) == 4


def test_a_bad_value_costs_nothing(tmp_path):
    with pytest.raises(InputError, match="train.steps"):
        plan_study("recall", ["train.steps=0,5"])


def test_networks_and_their_controls_are_compared_as_well(tmp_path):
    small = ["task.modulus=11", "model.width=16", "train.steps=6", "train.observe_every=2"]
    given = ["grokking", *small, "threads=1", "seed=0,1", "train.weight_decay=0.1,1"]
    done = CliRunner().invoke(app, ["compare", *given, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (folder,) = tmp_path.iterdir()
    result = json.loads((folder / "compare.json").read_text())
    assert len(result["rows"]) == 8 and result["majority"] == pytest.approx(1 / 11)
    summaries = [json.loads(f.read_text()) for f in folder.glob("*/grokking/summary.json")]
    told = {arm["weights_sha256"]: arm for one in summaries for arm in one["arms"].values()}
    for row in result["rows"]:
        found = told[row["weights_sha256"]]
        assert (row["mean"], row["loss"]) == (found["test_accuracy"], found["test_loss"])
    # Without decay in either, the control does not notice what is set for the other.
    control = [row["weights_sha256"] for row in result["rows"] if row["keys"]["model"] == "control"]
    assert len(set(control)) == 2 and len(told) == 6
