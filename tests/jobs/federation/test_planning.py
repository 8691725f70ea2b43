"""Runs that find out who is like whom before they train."""

import json
import shutil

import jsonschema
import pytest

from atlas.errors import InputError
from atlas.federation.mixing.apply import ALPHAS
from atlas.jobs import runner as run_job
from atlas.jobs.federation.plan import join_clusters, plan_run
from atlas.jobs.runner import resume_run, start_run
from atlas.runs.events import read_events
from atlas.runs.folder import schema
from tests.helpers import make_config

DATA = {"train": 16, "validation": 8, "test": 12, "clients_per_task": 2}
PRINT = {"sketch": 64, "folds": 4}


def small(**changes):
    return make_config(
        **{"data": DATA, "fingerprint": PRINT, "strategy": "atlas", "rounds": 2, **changes}
    )


def named(events, name):
    return [event for event in events if event["event"] == name]


def stop_after_first_round(monkeypatch, folder, **changes):
    """A run that ends after its first saved round."""
    original = run_job.save

    def save_and_die(*args):
        original(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(run_job, "save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        start_run(small(**changes), folder)
    monkeypatch.setattr(run_job, "save", original)
    return next(path for path in folder.iterdir() if path.is_dir())


@pytest.mark.parametrize("strategy", ["atlas", "cluster", "mira"])
def test_a_planned_run_tells_what_it_found(tmp_path, strategy):
    finished = start_run(small(strategy=strategy), tmp_path)
    jsonschema.validate(finished.summary, schema())
    events = read_events(finished.folder.events)
    (planned,) = named(events, "planned")
    assert len(named(events, "fingerprinted")) == 6
    assert planned["clients"] == sorted(finished.summary["score"]["clients"])
    assert (planned["clusters"] is None) == (strategy == "mira")
    assert ("clusters" in finished.summary) == (strategy != "mira")
    assert {path.name for path in finished.folder.plots.iterdir()} >= {
        "affinity.png", "fingerprints.png", "mixing.png",
    }  # fmt: skip
    first = events.index(planned)
    assert first < events.index(named(events, "round_started")[0])
    # Fingerprints are traffic like any other: 8 rows of 64 numbers at least, per client.
    rounds = sum(event["up"] for event in named(events, "round_finished"))
    assert finished.summary["bytes"]["up"] > rounds + 6 * 4 * 64 * 4


def test_a_resumed_run_has_the_same_plan_and_the_same_bits(tmp_path, monkeypatch):
    whole = start_run(small(), tmp_path / "whole")
    path = stop_after_first_round(monkeypatch, tmp_path / "cut")
    resumed = resume_run(path)
    assert resumed.summary["adapters_sha256"] == whole.summary["adapters_sha256"]
    assert resumed.summary["clusters"] == whole.summary["clusters"]
    assert resumed.summary["bytes"] == whole.summary["bytes"]
    assert len(named(read_events(resumed.folder.events), "planned")) == 1


def test_a_run_without_its_fingerprints_is_not_resumed(tmp_path, monkeypatch):
    path = stop_after_first_round(monkeypatch, tmp_path)
    saved = sorted(p for p in (path / "plan").rglob("*") if p.is_file())
    data = {file: file.read_bytes() for file in saved}
    shutil.rmtree(path / "plan")
    with pytest.raises(InputError, match="plan of this run is missing"):
        resume_run(path)
    for file, content in data.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    assert resume_run(path).summary is not None


def test_eta_zero_is_training_alone_to_the_bit(tmp_path):
    off = small(keep_best=False, relation={"eta": 0.0})
    control = start_run(off, tmp_path / "control").summary
    local = start_run(small(strategy="local"), tmp_path / "local").summary
    assert control["adapters_sha256"] == local["adapters_sha256"]
    on = start_run(small(keep_best=False, clusters={"method": "oracle"}), tmp_path / "on").summary
    assert on["adapters_sha256"] != control["adapters_sha256"]


def test_every_piece_changes_the_outcome(tmp_path):
    base = {"keep_best": False, "clusters": {"method": "oracle"}}
    arms = {
        "full": base,
        "one": {**base, "clusters": {"method": "one"}},
        "alpha": {**base, "clusters": {"method": "one"}, "relation": {"alpha": 9.0}},
        "uniform": {**base, "clusters": {"method": "one"}, "relation": {"affinity": "uniform"}},
        "eta": {**base, "relation": {"eta": 0.2}},
        "warmup": {**base, "relation": {"warmup": 1}},
        "cross": {**base, "relation": {"cross": 0.5}},
        "keep_best": {**base, "keep_best": True, "relation": {"eta": 1.0}},
    }
    hashes = {
        name: start_run(small(**changes), tmp_path / name).summary["adapters_sha256"]
        for name, changes in arms.items()
    }
    assert len(set(hashes.values())) == len(arms), hashes


def test_clients_choose_eta_and_alpha_by_their_validation_data(tmp_path):
    changes = {"keep_best": False, "clusters": {"method": "one"}}
    free = {"eta": "auto", "alpha": "auto"}
    finished = start_run(small(**changes, relation=free), tmp_path)
    events = read_events(finished.folder.events)
    delivered = named(events, "delivered")
    assert {event["accept"] for event in delivered} - {0.0, 1.0}, "some step in between"
    assert {event["pick"] for event in delivered} <= set(range(len(ALPHAS)))
    fixed = start_run(small(**changes), tmp_path / "fixed")
    offered = named(read_events(fixed.folder.events), "round_finished")[0]["down"]
    assert named(events, "round_finished")[0]["down"] > 3.5 * offered, "four mixtures are sent"
    for mixed in named(events, "mixed"):
        assert all(abs(sum(row) - 1) < 1e-9 for row in mixed["weights"])


def test_distances_shrink_with_eta_right_after_one_mixing(tmp_path):
    distances = []
    for eta in (0.0, 0.01, 0.1, 0.5):
        changes = {
            "keep_best": False,
            "alone": False,
            "rounds": 1,
            "clusters": {"method": "oracle"},
        }
        relation = {"eta": eta, "affinity": "uniform"}
        run = start_run(small(**changes, relation=relation), tmp_path / str(eta))
        (mixed,) = named(read_events(run.folder.events), "mixed")
        distances.append(mixed["distance"])
    trained = distances[0]["trained"]
    assert all(entry["trained"] == trained for entry in distances), "the same inputs"
    after = [entry["mixed"] for entry in distances]
    assert after[0] == trained
    assert all(one > two for one, two in zip(after, after[1:], strict=False))
    # Pairs of clients, each the other's only neighbour: the gap shrinks by 1 - 2 eta, and ranks
    # cut the mixture a little.
    assert after[2] == pytest.approx(0.8 * trained, rel=0.05)


def test_plan_stops_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sets = ["backbone.name=tiny", "strategy=atlas", "keep_best=null", "data.test=10"]
    sets += ["fingerprint.sketch=64", "data.clients_per_task=2"]
    found = plan_run("demo", sets)
    json.dumps(found)
    (planned,) = found["planned"]
    assert found["clusters"]["labels"].keys() == set(planned["clients"])
    assert [split["k"] for split in planned["clusters"]["tried"]] == [2, 3, 4, 5]
    assert not list(tmp_path.iterdir()), "nothing is written"
    other = plan_run("demo", [*sets, "clusters.method=oracle"])
    assert other["clusters"]["ari"] == 1.0 and other["clusters"]["k"] == 3
    plain = [*sets, "strategy=fedavg", "ranks.method=fixed"]
    assert plan_run("demo", plain)["planned"] == []


def test_clusters_of_several_cohorts_are_never_shared():
    one = {"clients": ["a", "b"], "tasks": ["x", "x"]}
    two = {"clients": ["c", "d", "e"], "tasks": ["x", "y", "y"]}
    one["clusters"] = {"labels": [0, 0], "silhouette": None}
    two["clusters"] = {"labels": [0, 1, 1], "silhouette": 0.5}
    found = join_clusters([one, two])
    assert found["labels"] == {"a": 0, "b": 0, "c": 1, "d": 2, "e": 2}
    assert found["k"] == 3 and found["silhouette"] == 0.5 and found["purity"] == 1.0
