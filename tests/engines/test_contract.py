"""Every engine keeps the contract of `exchange.transport`; so does the server that asks it.

What each task asks beside that is in `test_contract_tasks`. A second engine is one more line in
`contract.ENGINES`.
"""

from typing import get_args

import pytest
import torch

from atlas.federation.exchange.contents import ARMS
from atlas.federation.exchange.message import Message, MessageError, decode, encode
from atlas.federation.exchange.transport import CONTRACTS, Failure, TaskName
from atlas.federation.mixing.deliver import pack_mixtures
from atlas.jobs.federation.run import FederationJob
from atlas.jobs.runner import new_folder, save
from atlas.runs.checkpoint import latest_round
from atlas.runs.events import ignore
from tests.engines.contract import (
    CLIENTS,
    alike,
    answers,
    fit,
    load,
    make_offer,
    make_request,
    opened,
    restore,
    spoilt_facts,
    spoilt_requests,
    states,
)

every_task = pytest.mark.parametrize("task", get_args(TaskName))
OTHERS = [client for client in CLIENTS if client != "a2"]


def test_the_contract_has_every_task_and_explains_every_fact():
    assert set(CONTRACTS) == set(get_args(TaskName))
    for task, contract in CONTRACTS.items():
        assert contract.does, task
        assert (contract.again == "same") or contract.changes, task
        for content in (contract.request, contract.reply):
            assert all(f.description for f in content.facts.model_fields.values()), task
            assert all(content.tensors.values()), task


RUNS = {
    "atlas": {
        "strategy": "atlas", "relation": {"alpha": "auto"}, "adapter": {"ranks": {}, "blocks": 3},
        "ranks": {"method": "importance", "choices": [1, 2, 3], "budget": 1000},
        "split": {"point": "auto", "weights": {"balance": 9.0}},
    },
    "shrink": {"strategy": "cluster", "relation": {"eta": "shrink"}},
    "flora": {"strategy": "flora", "train": {"keep_moments": True}},
    "ditto": {"strategy": "ditto", "alone": False, "split": {"point": 2}},
    "body": {"strategy": "fedavg-body", "keep_best": True},
    "mosaic": {"strategy": "mosaic", "adapter": {"ranks": {}}, "route": {"budget": 0.5}},
    "simgrad": {"strategy": "simgrad", "relevance": {"sketch": 64}},
    "repsim": {"strategy": "repsim", "relevance": {"anchors": 6}},
    "packed": {"strategy": "mosaic", "adapter": {"ranks": {}}, "wire": {"form": "topk"}},
    "merged": {"strategy": "flora", "wire": {"form": "int8"}},
    "chosen": {"keep_best": True, "wire": {"form": "int8"}},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RUNS))
def test_all_that_is_said_in_a_run_is_in_the_contract(make, name, tmp_path):
    """A run that is stopped after a round and resumed; `Witness` holds every message to it."""
    federation = opened(make, **RUNS[name])
    folder = new_folder(federation.config, tmp_path, 1)
    job = FederationJob(federation)
    job.begin(folder, ignore)
    assert not job.run_rounds(ignore, lambda: save(job, folder, 0.0))
    again = opened(make, **RUNS[name])
    job = FederationJob(again)
    job.restore(folder, latest_round(folder.rounds))
    assert job.run_rounds(ignore, lambda: True)
    summary = job.finish(folder, ignore, 0.0)
    assert summary["failures"] == summary["refused"] == []
    log = federation.engine.log + again.engine.log
    check_log(log)
    planned = {"fingerprint", "capacity", "assign"} if name == "atlas" else set()
    planned |= {"fingerprint", "assign"} if name == "shrink" else set()
    planned |= {"signature"} if name in ("simgrad", "repsim", "mosaic", "packed") else set()
    lasting = {"fit", "deliver", "evaluate", "adapter", "save", "load"}
    assert {task for task, _, _ in log} == planned | lasting
    offers = [r.facts["offers"] for task, rs, _ in log if task == "deliver" for r in rs.values()]
    assert max(offers) == (4 if name == "atlas" else 1)
    forms = [a.facts.get("form") for task, _, rs in log if task == "fit" for a in rs.values()]
    wire = RUNS[name].get("wire", {})
    assert set(forms) == {wire.get("form")}, "compressed from the first round, also after a resume"
    told = {"split_up" in a.facts for task, _, rs in log if task == "fit" for a in rs.values()}
    assert (True in told) == (name in ("atlas", "ditto"))


def check_log(log):
    """Nothing is left to defaults, but what is told only where it is asked for or there is any."""
    where_there_is = {"split_up", "split_down", "beta", "salience", "noise", "passes"}
    where_there_is |= {"compress", "form", "beside", "alone"}
    for task, requests, replies in log:
        asked, told = CONTRACTS[task].request.facts, CONTRACTS[task].reply.facts
        for request, reply in zip(requests.values(), replies.values(), strict=True):
            assert isinstance(reply, Message)
            assert set(asked.model_fields) - set(request.facts) <= where_there_is
            assert set(told.model_fields) - set(reply.facts) <= where_there_is


@every_task
def test_a_reply_that_is_not_as_it_should_be_is_noticed(make, task):
    federation = opened(make)
    content = CONTRACTS[task].reply
    asked = {client: make_request(federation, task, client) for client in ("a1", "e1")}
    for reply in answers(federation, task, asked).values():
        content.check(reply)
        for what, facts in spoilt_facts(content, reply.facts):
            with pytest.raises(MessageError, match="facts"):
                content.check(Message(reply.tensors, facts))
                pytest.fail(what)
        with pytest.raises(MessageError, match="more"):
            content.check(Message({**reply.tensors, "more": torch.zeros(1)}, reply.facts))


def test_nobody_else_is_asked_or_answers(make):
    federation = opened(make)
    before = states(federation)
    for task in ("fit", "deliver", "assign"):
        asked = {client: make_request(federation, task, client) for client in ("a2", "e1")}
        replies = federation.engine.ask(task, {**asked, "nobody": asked["a2"]})
        assert [c for c, reply in replies.items() if isinstance(reply, Failure)] == ["nobody"]
        after = states(federation)
        assert {client for client in CLIENTS if after[client] != before[client]} == set(asked)
    assert federation.engine.ask("fit", {}) == {}


def test_an_unknown_task_fails_at_everybody(make):
    federation = opened(make)
    before = states(federation)
    replies = federation.engine.engine.ask("dance", dict.fromkeys(CLIENTS, encode({}, {})))
    assert set(replies) == set(CLIENTS)
    assert all(isinstance(reply, Failure) and "dance" in reply.reason for reply in replies.values())
    assert states(federation) == before


@every_task
def test_a_request_that_is_not_as_it_should_be_fails_alone(make, task):
    federation = opened(make)
    fit(federation)
    before = states(federation)
    good = {client: make_request(federation, task, client) for client in ("a1", "c1", "e1")}
    cases = dict(spoilt_requests(federation, task, "a2"))
    wanted = answers(federation, task, good)
    assert len(cases) >= 4
    for what, payload in cases.items():
        restore(federation, before)
        replies = federation.engine.engine.ask(task, {**good, "a2": payload})
        failed = [c for c, reply in replies.items() if isinstance(reply, Failure)]
        assert failed == ["a2"], what
        assert replies["a2"].reason, what
        assert all(alike(decode(replies[client]), wanted[client]) for client in good), what
        assert states(federation, ["a2"])["a2"] == before["a2"], what


@every_task
def test_the_order_of_asking_makes_no_difference(make, task):
    federation = opened(make)
    before = states(federation)
    asked = {client: make_request(federation, task, client) for client in CLIENTS}
    forth = federation.engine.ask(task, asked), states(federation)
    restore(federation, before)
    back = federation.engine.ask(task, dict(reversed(asked.items()))), states(federation)
    assert forth == back


@every_task
def test_what_a_task_changes_and_what_it_does_when_repeated(make, task):
    federation = opened(make, strategy="flora")
    asked = {client: make_request(federation, task, client) for client in CLIENTS}
    fit(federation)
    before = states(federation)
    first = federation.engine.ask(task, asked), states(federation)
    second = federation.engine.ask(task, asked), states(federation)
    contract = CONTRACTS[task]
    assert (first[1] != before) == bool(contract.changes)
    assert (first == second) == (contract.again == "same")


def test_everybody_is_answered_from_its_own_request(make):
    apart, together = opened(make), opened(make)
    rounds = {client: encode({}, {"round": 1 + i % 3}) for i, client in enumerate(CLIENTS)}
    found = answers(together, "fit", rounds)
    for client, request in rounds.items():
        assert alike(answers(apart, "fit", {client: request})[client], found[client])
    arms = [(split, arm) for split, arms in ARMS.items() for arm in arms]
    asked = {client: encode({}, {"split": split, "arm": arm})
             for client, (split, arm) in zip(CLIENTS, arms * 2, strict=True)}  # fmt: skip
    found = answers(together, "evaluate", asked)
    for client, request in asked.items():
        assert alike(answers(apart, "evaluate", {client: request})[client], found[client])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train": {"keep_moments": True}},
        {"strategy": "flora", "train": {"keep_moments": True}},
        {"strategy": "ditto"},
        {"keep_best": True},
    ],
    ids=["plain", "moments", "merged", "personal", "best"],
)
def test_a_state_once_saved_is_gone_on_from_to_the_bit(make, changes):
    """By the client that saved it, whatever it did since, and by a new one."""
    federation = opened(make, **changes)
    start = states(federation)
    first = federation.engine.ask("fit", fits(1))
    load(federation, start)
    assert states(federation) == start
    assert federation.engine.ask("fit", fits(1)) == first
    offers = {c: pack_mixtures([make_offer(federation, c, 3)], {"round": 1}) for c in CLIENTS}
    answers(federation, "deliver", offers)
    saved = states(federation)
    second, after = federation.engine.ask("fit", fits(2)), states(federation)
    assert after != saved
    for other in (federation, opened(make, **changes)):
        load(other, saved)
        assert states(other) == saved
        assert other.engine.ask("fit", fits(2)) == second
        assert states(other) == after
    load(federation, start)
    assert states(federation) == start
    assert federation.engine.ask("fit", fits(1)) == first


def fits(number):
    return dict.fromkeys(CLIENTS, encode({}, {"round": number}))


def test_training_that_blows_up_fails_alone_and_leaves_the_adapter(make):
    federation = opened(make)
    before = states(federation)
    wanted = fit(federation, OTHERS)
    restore(federation, before)
    state = decode(before["a2"])
    huge = {k: v * 1e200 if k.startswith("arm|held|") else v for k, v in state.tensors.items()}
    restore(federation, {"a2": encode(huge, state.facts)})
    replies = federation.engine.ask("fit", fits(1))
    assert [client for client, r in replies.items() if isinstance(r, Failure)] == ["a2"]
    assert "NaN" in replies["a2"].reason
    assert all(alike(decode(replies[client]), wanted[client]) for client in OTHERS)
    after = decode(states(federation, ["a2"])["a2"]).tensors
    moved = {name.split("|")[1] for name, value in after.items() if not value.equal(huge[name])}
    assert moved == {"shadow"}
