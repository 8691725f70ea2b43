"""Whole runs with estimated steps: told, drawn, resumed to the same bits, refused elsewhere."""

import jsonschema
import pytest

from atlas.build.federation import build_federation
from atlas.errors import InputError
from atlas.jobs.runner import resume_run, start_run
from atlas.runs.events import read_events
from atlas.runs.folder import schema
from tests.jobs.federation.test_planning import DATA, named, small, stop_after_first_round

SHRINK = {"relation": {"eta": "shrink"}, "clusters": {"method": "oracle"}, "rounds": 3}


@pytest.mark.parametrize("strategy", ["atlas", "cluster", "mira"])
def test_steps_are_told_for_every_client_and_round(tmp_path, strategy):
    changes = {**SHRINK, "strategy": strategy, "data": {**DATA, "difference": 1.0}}
    if strategy == "mira":
        changes |= {"clusters": {}}
    finished = start_run(small(**changes), tmp_path)
    jsonschema.validate(finished.summary, schema())
    events = named(read_events(finished.folder.events), "shrunk")
    assert [event["round"] for event in events] == [1, 2, 3]
    for event in events:
        for told in event["clients"].values():
            assert set(told) == {"noise", "difference", "rho", "keep", "eta"}
            assert 0 <= told["eta"] <= 1 and 0 <= told["keep"] <= 1 and 0 < told["rho"] < 1
            both = told["noise"] + told["difference"]
            assert told["keep"] == pytest.approx(told["difference"] / both)
    last = events[-1]["clients"]
    assert {c: s["eta"] for c, s in finished.summary["steps"].items()} == {
        c: told["eta"] for c, told in last.items()
    }
    assert (finished.folder.plots / "steps.png").is_file()
    # Switched off, the outcome is another one.
    plain = start_run(small(**{**changes, "relation": {}, "name": "even"}), tmp_path)
    assert "steps" not in plain.summary
    assert not named(read_events(plain.folder.events), "shrunk")
    assert plain.summary["adapters_sha256"] != finished.summary["adapters_sha256"]


def test_nothing_kept_is_even_to_the_bit(tmp_path, monkeypatch):
    from atlas.ops.graph.shrink import Deviation

    even = start_run(small(name="even", **{**SHRINK, "relation": {}}), tmp_path)
    monkeypatch.setattr(Deviation, "share", 0.0)
    nothing = start_run(small(name="nothing", **SHRINK), tmp_path)
    assert nothing.summary["adapters_sha256"] == even.summary["adapters_sha256"]


def test_a_resumed_run_has_the_same_steps_and_bits(tmp_path, monkeypatch):
    whole = start_run(small(**SHRINK), tmp_path / "whole")
    folder = stop_after_first_round(monkeypatch, tmp_path / "cut", **SHRINK)
    again = resume_run(folder)
    assert again.summary["adapters_sha256"] == whole.summary["adapters_sha256"]
    assert again.summary["steps"] == whole.summary["steps"]


@pytest.mark.parametrize(
    "changes",
    [
        {"sample": 0.5, "strategy": "mira", "clusters": {}},
        {"sample": 0.7, "absent": "last"},
        {"relation": {"eta": "shrink", "warmup": 1}},
        {"relation": {"eta": "shrink", "alpha": "auto"}, "keep_best": True},
        {"adapter": {"ranks": {"order-1": 1, "order-2": 5}}},
        {"train": {"epochs": 3, "early_stop": {"patience": 1}}},
    ],
)
def test_absent_clients_warmup_choices_ranks_and_early_stops_go_with_it(tmp_path, changes):
    finished = start_run(small(**{**SHRINK, **changes}), tmp_path)
    assert not finished.summary["failures"] and not finished.summary["refused"]
    events = named(read_events(finished.folder.events), "shrunk")
    assert len(events) == 3
    if "warmup" in changes.get("relation", {}):
        first, second = events[:2]
        assert {told["eta"] for told in first["clients"].values()} == {0.0}
        assert max(told["eta"] for told in second["clients"].values()) > 0


@pytest.mark.parametrize("train", [{"steps": 1, "epochs": None}, {"batch": 64}])
def test_without_halves_steps_are_even_and_that_is_told(tmp_path, train):
    changes = {**SHRINK, "train": {"epochs": 1, "batch": 4, "lr": 0.02, **train}}
    shrunk = start_run(small(**changes), tmp_path)
    even = start_run(small(**{**changes, "relation": {}, "name": "even"}), tmp_path)
    assert shrunk.summary["adapters_sha256"] == even.summary["adapters_sha256"]
    (event, *_) = named(read_events(shrunk.folder.events), "shrunk")
    assert set(event["clients"].values()) == {None}
    assert set(shrunk.summary["steps"].values()) == {None}


def test_a_client_alone_in_its_cluster_has_no_step(tmp_path):
    data = {**DATA, "clients_of": {"order": 1}}
    finished = start_run(small(**{**SHRINK, "data": data}), tmp_path)
    assert finished.summary["steps"]["order-1"] is None
    assert finished.summary["steps"]["sentiment-1"] is not None


@pytest.mark.parametrize("strategy", ["fedavg", "local", "oracle", "simgrad", "pooled", "flora"])
def test_it_is_refused_where_nobody_steps_toward_neighbours(strategy):
    with pytest.raises(InputError, match=r"relation.eta: 'shrink'.*atlas, cluster, mira"):
        build_federation(small(strategy=strategy, relation={"eta": "shrink"}))


def test_it_is_refused_where_parts_of_adapters_travel():
    with pytest.raises(InputError, match=r"relation.eta: 'shrink'.*route.budget"):
        build_federation(small(relation={"eta": "shrink"}, route={"budget": 0.5}))


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_replies_that_are_rounded_tell_the_same_to_a_few_hundredths(tmp_path, form):
    changes = {**SHRINK, "data": {**DATA, "difference": 1.0}, "keep_best": False}
    plain = start_run(small(**changes), tmp_path)
    rounded = start_run(small(**changes, name=form, wire={"form": form}), tmp_path)
    assert plain.summary["adapters_sha256"] != rounded.summary["adapters_sha256"]
    known, found = plain.summary["steps"], rounded.summary["steps"]
    assert max(told["keep"] for told in known.values()) > 0.3
    for client, told in known.items():
        assert found[client]["keep"] == pytest.approx(told["keep"], abs=0.05)


def test_it_is_refused_where_replies_leave_most_out():
    wire = {"form": "topk", "share": 0.1}
    with pytest.raises(InputError, match=r"relation.eta: 'shrink'.*'topk'.*bfloat16, int8"):
        build_federation(small(relation={"eta": "shrink"}, wire=wire))
    build_federation(small(wire=wire))
