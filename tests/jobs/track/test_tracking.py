"""`track=tensorboard` and `track=mlflow`: the files that they wrote hold the run's own figures."""

import json

import pytest

import atlas
from atlas.errors import InputError
from atlas.jobs.track import tracking, writers
from atlas.jobs.track.scalars import final_scalars, round_scalars
from tests.helpers import stop_after
from tests.test_doctests import TINY

MEMORY = [
    "size=quick",
    "train.steps=4",
    "train.round_steps=2",
    "train.observe_every=1",
    "threads=1",
]


def read_board(run):
    """What TensorBoard itself finds in a run's files."""
    board = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs tensorboard: pip install 'atlas-personal[track]'",
    )
    found = board.EventAccumulator(str(run.path / "tensorboard"), {board.SCALARS: 0})
    found.Reload()
    return {
        name: [(point.step, point.value) for point in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def start(tmp_path, track, **more):
    return atlas.run("demo", out=tmp_path, track=track, strategy="fedavg", **{**TINY, **more})


def test_tensorboard_has_the_figures_of_every_round(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    run = start(tmp_path, "tensorboard")
    found, rounds, clients = read_board(run), run.rounds(), run.rounds("client")
    for name in ("loss", "score", "up", "seconds"):
        assert [step for step, _ in found[name]] == [1, 2]
        assert [value for _, value in found[name]] == pytest.approx(rounds[name].tolist(), rel=1e-5)
    own = clients.xs("order-1", level="client")["loss"].tolist()
    assert [value for _, value in found["loss/order-1"]] == pytest.approx(own, rel=1e-5)
    scores = run.summary["score"]["clients"]
    assert found["test/score/order-1"] == [(2, pytest.approx(scores["order-1"], rel=1e-5))]


def test_switched_off_nothing_is_written_and_nothing_else_changes(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    off, on = start(tmp_path / "a", "none"), start(tmp_path / "b", "tensorboard")
    assert not (off.path / "tensorboard").exists() and not (off.path / "track.json").exists()
    assert off.summary["adapters_sha256"] == on.summary["adapters_sha256"]


def test_a_resumed_run_goes_on_with_the_same_log(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    half = start(tmp_path / "a", "tensorboard", rounds=3, watch=stop_after(1))
    assert half.summary is None
    # A kill after a round was saved and before its figures were written.
    notes = half.path / "track.json"
    notes.write_text(json.dumps({"track": "tensorboard", "round": 0, "step": 0}))
    done = half.resume()
    whole = start(tmp_path / "b", "tensorboard", rounds=3)
    one, other = read_board(done), read_board(whole)
    assert [step for step, _ in one["loss"]] == [1, 2, 3], "every round once"
    assert one.keys() == other.keys() and one["loss"] == other["loss"]


def test_mlflow_has_the_figures_of_every_round(tmp_path):
    pytest.importorskip("mlflow", reason="needs mlflow: pip install 'atlas-personal[track]'")
    from mlflow.tracking import MlflowClient

    half = start(tmp_path, "mlflow", rounds=3, watch=stop_after(2))
    notes = json.loads((half.path / "track.json").read_text())
    (half.path / "track.json").write_text(json.dumps({**notes, "round": 1, "step": 1}))
    run = half.resume()
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    found = client.get_run(notes["run"])
    assert found.info.run_name == "demo" and found.info.status == "FINISHED"
    for name in ("loss", "loss/order-1", "up"):
        history = sorted(client.get_metric_history(notes["run"], name), key=lambda m: m.step)
        assert [metric.step for metric in history] == [1, 2, 3], "every round once"
    assert [m.value for m in history] == run.rounds()["up"].tolist()


def test_a_memory_run_is_tracked_by_step_and_arm(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    run = atlas.run("recall", *MEMORY, out=tmp_path, track="tensorboard")
    found = read_board(run)
    trained = [e for e in run.events() if e["event"] == "trained" and e["arm"] == "memory"]
    assert [step for step, _ in found["loss/memory"]] == [event["step"] for event in trained]
    ends = [e for e in run.events() if e["event"] == "round_finished"]
    wanted = [(e["step"], pytest.approx(e["accuracy"]["memory"])) for e in ends]
    assert found["validation/accuracy/memory"] == wanted


def test_a_log_that_fails_is_told_and_the_run_goes_on(tmp_path, monkeypatch):
    class Full:
        state = {}

        def write(self, points):
            raise OSError("no space left")

        def close(self, *, finished):
            pass

    monkeypatch.setattr(tracking, "open_log", lambda *_: Full())
    monkeypatch.setattr("atlas.jobs.runner.check_library", lambda _: None)
    run = start(tmp_path, "tensorboard")
    assert run.summary["score"]["mean"] is not None
    told = [event for event in run.events() if event["event"] == "untracked"]
    assert len(told) == 1 and "no space left" in told[0]["reason"]


def test_a_library_that_is_not_there_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(writers.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="track: mlflow is not installed: pip install"):
        start(tmp_path, "mlflow")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="track"):
        start(tmp_path, "wandb")


def test_many_clients_have_no_curves_of_their_own():
    events = [
        {"event": "fitted", "round": 1, "client": f"c{i}", "loss": 1.0, "steps": 1, "examples": 1}
        for i in range(65)
    ]
    ended = {"event": "round_finished", "round": 1, "up": 1, "down": 2, "seconds": float("nan")}
    names = {point.name for point in round_scalars([*events, ended])}
    assert names == {"loss", "up", "down"}, "means alone, and no figure that is none"
    few = {point.name for point in round_scalars([*events[:64], ended])}
    assert {"loss/c0", "loss/c63"} <= few


def test_tests_are_told_by_client_or_arm():
    events = [
        {"event": "tested", "client": "a", "scores": {"score": 0.5}, "alone": {"score": 0.1}},
        {"event": "tested", "arm": "memory", "accuracy": 0.25, "memory": {"0/M": 2.0}},
    ]
    found = {point.name: point.value for point in final_scalars(events, 7)}
    assert found == {
        "test/score/a": 0.5,
        "test/accuracy/memory": 0.25,
        "test/memory/0/M/memory": 2.0,
    }
