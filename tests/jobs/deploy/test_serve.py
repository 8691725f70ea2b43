"""Runs over nodes: the same results, states that stay on nodes, lives of servers and trainers."""

import pytest

from atlas.build.remote import sent_settings
from atlas.config.load import dump_config
from atlas.engines.flower.records import Parcel
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Failure
from atlas.jobs.deploy import serve as serving
from atlas.jobs.federation.run import FederationJob
from atlas.jobs.runner import start_run
from atlas.runs.events import read_events
from tests.engines.flower.nearness import exported, farthest
from tests.helpers import make_config
from tests.jobs.deploy.nodes import CLIENTS, Gone, Nodes, Nth, die, new_run, settings


@pytest.fixture(autouse=True)
def _calls(monkeypatch):
    """Nodes are called, not written to; a deadline is not theirs."""
    monkeypatch.setattr(serving, "replace", lambda post, **changes: post)
    monkeypatch.setattr("atlas.engines.flower.roll.replace", lambda post, **changes: post)
    monkeypatch.setattr(FederationJob, "draw", lambda job, folder: None)  # slow, and not ours


def whole(tmp_path, *more):
    """A run over nodes that nothing disturbs."""
    folder = new_run(settings(*more), tmp_path / "whole")
    return folder, serving.serve(Nodes(tmp_path / "quiet"), folder).summary


ATLAS = ["strategy=atlas", "keep_best=true", "train.keep_moments=true"]
GRANTED = ["strategy=fedavg", "ranks.method=importance", "ranks.choices=[1,2]"]


@pytest.mark.parametrize("more", [ATLAS, GRANTED], ids=["atlas", "granted"])
def test_a_run_over_nodes_ends_as_a_local_one(tmp_path, more):
    folder = new_run(settings(*more), tmp_path / "runs")
    there = serving.serve(Nodes(tmp_path), folder)
    here = start_run(settings(*more), tmp_path / "here")
    assert farthest(exported(here.folder), exported(folder)) <= 1e-10
    for key in ("ranks", "majority", "test_examples", "failures", "score"):
        assert here.summary[key] == there.summary[key], key
    # Nothing that clients keep to themselves is at the server.
    blobs = [path.read_bytes() for path in folder.rounds.glob("*/blobs/*")]
    assert len(blobs) == 6
    assert all(not decode(blob).tensors for blob in blobs)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_run_over_nodes_has_its_page(tmp_path, wanted):
    told = str(wanted).lower()
    folder, summary = whole(tmp_path, "strategy=fedavg", "rounds=1", f"report={told}")
    assert summary["rounds"] == 1
    assert (folder.path / "report.html").exists() == wanted


def test_a_round_takes_two_messages_per_client(tmp_path):
    nodes = Nodes(tmp_path)
    serving.serve(nodes, new_run(settings(*ATLAS, "rounds=2"), tmp_path / "runs"))
    asked = [tasks for node, _, tasks in nodes.log if node == 1]
    once = [["hello"], ["fingerprint"], ["evaluate"], ["evaluate"], ["adapter"]]
    assert sorted(asked) == sorted([*once, *[["fit"], ["deliver", "evaluate"]] * 2])


@pytest.mark.parametrize(
    ("more", "task"),
    [(ATLAS, "fit"), (ATLAS, "deliver"), (GRANTED, "fit")],
    ids=["fit", "deliver", "granted"],
)
def test_a_killed_server_goes_on_and_clients_ahead_of_it_go_back(tmp_path, more, task):
    _, wanted = whole(tmp_path, *more)
    nodes, folder = Nodes(tmp_path), new_run(settings(*more), tmp_path / "runs")
    nodes.after = Nth(task, 3, die)
    with pytest.raises(Gone):
        serving.serve(nodes, folder)
    found = serving.serve(nodes, folder).summary
    assert found["adapters_sha256"] == wanted["adapters_sha256"]
    told = [event["event"] for event in read_events(folder.events)]
    assert told.count("resumed") == 1
    assert told.count("round_started") == 3


def test_another_trainer_goes_on_where_one_died(tmp_path):
    _, wanted = whole(tmp_path, *ATLAS)
    nodes, folder = Nodes(tmp_path), new_run(settings(*ATLAS), tmp_path / "runs")
    nodes.after = lambda about: nodes.restart(2)  # after every single message
    assert serving.serve(nodes, folder).summary["adapters_sha256"] == wanted["adapters_sha256"]


def test_a_node_that_was_away_comes_back_with_its_own_state(tmp_path):
    nodes, folder = Nodes(tmp_path), new_run(settings(*ATLAS, "rounds=4"), tmp_path / "runs")
    held = nodes.folders[2] / "state"

    def leave():
        nodes.away = {2}
        nodes.after = Nth("fit", 2, come_back)

    def come_back():
        nodes.away = set()
        nodes.restart(2)
        states.extend(sorted(path.name for path in held.glob("*/*/[0-9]*")))

    states = []
    nodes.after = Nth("deliver", 1, leave)
    summary = serving.serve(nodes, folder).summary
    assert states == ["0001"]  # it knows of no other round, and goes on from this one
    failed = {(entry["round"], entry["client"]) for entry in summary["failures"]}
    assert failed == {(2, CLIENTS[1]), (3, CLIENTS[1])}
    fitted = [e["round"] for e in events(folder, "fitted") if e["client"] == CLIENTS[1]]
    assert fitted == [1, 4]
    assert set(summary["score"]["clients"]) == set(CLIENTS)


def events(folder, name):
    return [event for event in read_events(folder.events) if event["event"] == name]


def test_who_is_away_at_the_end_is_left_out_and_named(tmp_path):
    nodes, folder = Nodes(tmp_path), new_run(settings(*ATLAS, "rounds=2"), tmp_path / "runs")
    nodes.after = Nth("deliver", 2, lambda: nodes.away.add(3))
    summary = serving.serve(nodes, folder).summary
    assert set(summary["score"]["clients"]) == set(CLIENTS[:2])
    assert {entry["client"] for entry in summary["failures"]} == {CLIENTS[2]}
    assert sorted(exported(folder)) == sorted(CLIENTS[:2])


def test_too_few_clients_end_the_run_after_what_is_saved(tmp_path):
    nodes, folder = Nodes(tmp_path), new_run(settings("flower.quorum=0.7"), tmp_path / "runs")
    nodes.after = Nth("deliver", 1, lambda: nodes.away.add(2))
    with pytest.raises(RuntimeError, match="quorum 0.7 needs 3"):
        serving.serve(nodes, folder)
    nodes.away = set()
    assert serving.serve(nodes, folder).summary["rounds"] == 3
    assert [e["round"] for e in events(folder, "round_finished")] == [1, 2, 3]


def test_late_answers_count_as_failures_and_a_quorum_of_others_goes_on(tmp_path):
    nodes, folder = Nodes(tmp_path), new_run(settings("rounds=1"), tmp_path / "runs")
    exchange = nodes.exchange

    def late(parcels, about):
        answers = exchange(parcels, about)
        if about == "fit":
            answers[CLIENTS[0]] = Failure("no answer within 1 seconds")
        return answers

    nodes.exchange = late
    summary = serving.serve(nodes, folder).summary
    assert [entry["client"] for entry in summary["failures"]] == [CLIENTS[0]]
    assert {e["client"] for e in events(folder, "fitted")} == set(CLIENTS[1:])


def test_round_one_waits_for_everybody(tmp_path):
    nodes, folder = Nodes(tmp_path), new_run(settings(), tmp_path / "runs")
    nodes.away = {1}
    with pytest.raises(RuntimeError, match=f"no node has come for {CLIENTS[0]}"):
        serving.serve(nodes, folder)


def test_other_data_than_a_run_began_with_is_refused(tmp_path):
    nodes, folder = Nodes(tmp_path), new_run(settings(), tmp_path / "runs")
    nodes.after = Nth("fit", 2, die)
    with pytest.raises(Gone):
        serving.serve(nodes, folder)
    next(nodes.folders[1].glob("state/*/*/identity.txt")).write_text("other")
    summary = serving.serve(nodes, folder).summary
    reasons = [e["reason"] for e in summary["failures"] if e["client"] == CLIENTS[0]]
    assert any("others than this run was begun with" in reason for reason in reasons)
    assert set(summary["score"]["clients"]) == set(CLIENTS[1:])


def test_a_server_gets_no_state_and_reaches_no_other_client(tmp_path):
    nodes, folder = Nodes(tmp_path), new_run(settings("rounds=1"), tmp_path / "runs")
    serving.serve(nodes, folder)
    trainer = nodes.trainers[1]
    facts = {"run": trainer._run.name, "settings": trainer._run.settings,
             "session": "s", "after": 1}  # fmt: skip
    for task, client in (("save", CLIENTS[0]), ("load", CLIENTS[0]), ("fit", CLIENTS[1])):
        asked = Parcel({**facts, "client": client, "tasks": [task]}, [encode({}, {"round": 1})])
        answer = trainer.answer(asked)
        assert answer.texts("failed") != [""], task
        assert list(answer.payloads) == [b""]


def test_what_a_node_does_not_allow_is_refused(tmp_path):
    nodes = Nodes(tmp_path)
    folder = new_run(settings("rounds=1", "backbone.allow_hub=true"), tmp_path / "runs")
    with pytest.raises(RuntimeError, match="no node has come"):
        serving.serve(nodes, folder)
    assert not list(tmp_path.glob("node-*/state"))


def test_nodes_are_told_no_place_on_the_servers_disk(tmp_path):
    own = {"clients": [{"id": "a", "task": "sst2", "data": "/srv/a.csv", "test_data": "/srv/t"}],
           "data": {"path": "/srv/data"}}  # fmt: skip
    config = make_config(**own)
    assert "/srv" not in sent_settings(config)
    assert "/srv" in dump_config(config)
