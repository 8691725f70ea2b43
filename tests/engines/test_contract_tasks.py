"""What each task asks of every engine, beyond what holds for all; see `test_contract`."""

import pytest
import torch

from atlas.config.plan import RelevanceSettings
from atlas.federation.adapters.adapter import adapter_sha256
from atlas.federation.exchange.contents import ARMS, SHARES
from atlas.federation.exchange.guard import Expected, check_reply
from atlas.federation.exchange.message import Message, decode, encode
from atlas.federation.exchange.transport import CONTRACTS, Failure
from atlas.federation.mixing.deliver import pack_mixtures, unpack_mixtures
from atlas.federation.signatures.signature import longest, signature_width
from tests.engines.contract import (
    CLIENTS,
    alike,
    answers,
    check_delivery,
    fit,
    held,
    make_offer,
    make_request,
    opened,
    requests,
    restore,
    settings,
    shapes_of,
    states,
    travels,
)
from tests.helpers import make_clients


@pytest.mark.parametrize("strategy", ["fedavg", "fedavg-body", "ffa"])
def test_only_what_travels_leaves_a_client_and_comes_back(make, strategy):
    federation = opened(make, strategy=strategy)
    for client, reply in fit(federation).items():
        shapes = shapes_of(federation, client)
        going = {name: shape for name, shape in shapes.items() if travels(federation, name)}
        assert {name: tuple(value.shape) for name, value in reply.tensors.items()} == going
        assert len(going) < len(shapes) or strategy == "fedavg" or client in ("e1", "p1")
        data = federation.holders[client].data
        assert reply.facts["examples"] == len(data.train)
        again, content = encode(reply.tensors, reply.facts), CONTRACTS["fit"].reply
        good = check_reply(again, content, Expected(going, torch.float64))
        assert isinstance(good, Message)
    before = states(federation)
    offers = {client: [make_offer(federation, client, 1)] for client in CLIENTS}
    deliver(federation, offers)
    for client, state in states(federation).items():
        old, new = decode(before[client]).tensors, decode(state).tensors
        for name in shapes_of(federation, client):
            kept = torch.equal(old[f"arm|held|{name}"], new[f"arm|held|{name}"])
            assert kept != travels(federation, name), name
    adapters = answers(federation, "adapter", requests("adapter", arm="final"))
    for client, reply in adapters.items():
        found = {name: tuple(value.shape) for name, value in reply.tensors.items()}
        assert found == shapes_of(federation, client)
    if strategy != "fedavg":
        everything = {name: torch.zeros(shape).double()
                      for name, shape in shapes_of(federation, "a1").items()}  # fmt: skip
        payload = pack_mixtures([everything], {"round": 1})
        assert isinstance(federation.engine.ask("deliver", {"a1": payload})["a1"], Failure)


def deliver(federation, offers):
    """What clients made of their offers, each checked against what they now hold."""
    asked = {client: pack_mixtures(some, {"round": 1}) for client, some in offers.items()}
    found = {client: reply.facts for client, reply in answers(federation, "deliver", asked).items()}
    for client, facts in found.items():
        check_delivery(federation, client, offers[client], facts)
    return found


def test_one_offer_is_taken_whole_and_of_none_nothing(make):
    federation = opened(make)
    trained = held(states(federation), federation)
    offers = {client: [make_offer(federation, client, 1)] for client in CLIENTS[::2]}
    offers |= {client: [] for client in CLIENTS[1::2]}
    for client, facts in deliver(federation, offers).items():
        assert (facts["accept"], facts["pick"]) == (1.0 if offers[client] else 0.0, 0)
        if not offers[client]:
            assert facts["sha256"] == adapter_sha256(trained[client])


def tempting(federation):
    """Offers for every client: noise, what it trained to in two more rounds, and noise again."""
    before = states(federation)
    for number in (2, 3):
        fit(federation, number=number)
    better = held(states(federation), federation)
    restore(federation, before)
    return {
        client: [make_offer(federation, client, 1, 9.0), better[client],
                 make_offer(federation, client, 2, 9.0)]
        for client in CLIENTS
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{}, {"keep_best": True}, {"strategy": "mira", "relation": {"eta": "auto"}}],
    ids=["plain", "best", "free step"],
)
def test_of_several_offers_validation_data_picks_one(make, changes):
    federation = opened(make, train={"lr": 0.01}, **changes)
    fit(federation)
    offers = tempting(federation)
    before = states(federation)
    found = deliver(federation, {**offers, "a2": offers["a2"][1:2], "s1": []})
    assert (found["s1"]["accept"], found["s1"]["pick"]) == (0.0, 0)
    assert found["a2"]["pick"] == 0
    for client in ("a1", "c1", "e1", "p1"):
        assert found[client]["pick"] == (1 if found[client]["accept"] else 0)
        if not changes:
            assert found[client]["accept"] == 1.0
    assert {facts["accept"] for facts in found.values()} > {0.0}
    restore(federation, before)
    noise = deliver(federation, {client: some[::2] for client, some in offers.items()})
    accepts = {facts["accept"] for facts in noise.values()}
    assert accepts == {1.0} if not changes else min(accepts) < 1.0
    assert accepts <= set(SHARES)


def test_a_mixture_to_merge_has_any_rank_and_no_rival(make):
    federation = opened(make, strategy="flora")
    fit(federation)
    ranks = (7, 5, 6, 8)
    mixtures = {
        client: {name: torch.full(shape, 0.01).double()
                 for name, shape in shapes_of(federation, client, ranks).items()}
        for client in CLIENTS
    }  # fmt: skip
    payloads = {c: pack_mixtures([one], {"round": 1}) for c, one in mixtures.items()}
    for client, reply in answers(federation, "deliver", payloads).items():
        sha256 = adapter_sha256(unpack_mixtures(decode(payloads[client]))[0])
        assert reply.facts == {"accept": 1.0, "pick": 0, "sha256": sha256}
    before = states(federation)
    name = min(name for name in mixtures["a1"] if name.startswith("lora_b/"))
    twin = {key: value.clone() for key, value in mixtures["a1"].items()}
    uneven = {**twin, name: twin[name][:, 1:]}
    for bad in ([mixtures["a1"], twin], [uneven]):
        asked = {**payloads, "a1": pack_mixtures(bad, {"round": 1})}
        replies = federation.engine.ask("deliver", asked)
        assert [client for client, r in replies.items() if isinstance(r, Failure)] == ["a1"]
        assert states(federation)["a1"] == before["a1"]
    for client, reply in answers(federation, "adapter", requests("adapter", arm="final")).items():
        assert set(reply.tensors) == set(shapes_of(federation, client))


@pytest.mark.parametrize("point", [1, 2])
def test_split_steps_tell_their_bytes(make, point):
    """All texts in one batch, so that a step sends all tokens; blocks 1 and 2 have adapters."""
    train = {"epochs": 2, "batch": 64}
    whole, split = opened(make, train=train), opened(make, train=train)
    halves = ("a1", "c1", "e1")
    granted = {c: {"ranks": list(split.ranks[c]), "trial": False} for c in CLIENTS}
    points = {c: point if c in halves else None for c in CLIENTS}
    asked = {c: encode({}, {**granted[c], "point": points[c]}) for c in CLIENTS}
    answers(split, "assign", asked)
    told = answers(split, "capacity", requests("capacity"))
    plain = fit(whole)
    for client, reply in fit(split).items():
        if client not in halves:
            assert not {"split_up", "split_down"} & set(reply.facts)
            continue
        width = split.models[client].backbone.width
        values = torch.zeros(sum(told[client].facts["lengths"]), width, dtype=torch.float64)
        size = reply.facts["steps"] * len(encode({"values": values}, {}))
        assert reply.facts["split_up"] == size
        assert reply.facts["split_down"] == (size if point > 1 else 0)
        assert reply.facts["steps"] == 2
        for name, value in reply.tensors.items():
            assert torch.allclose(value, plain[client].tensors[name], atol=1e-10, rtol=0)


def test_assigned_ranks_are_started_from_and_measured(make):
    federation = opened(make, alone=False)
    start = states(federation)
    fit(federation)
    ranks = {"a1": (4, 1, 2, 3), "e1": (1, 1, 1, 1), "a2": (3, 3, 3, 3)}
    sent = {c: encode({}, {"ranks": own, "point": None, "trial": c != "a2"})
            for c, own in ranks.items()}  # fmt: skip
    replies = answers(federation, "assign", sent)
    assert replies["a2"].facts == {"bytes": None}
    sizes = [replies[client].facts["bytes"] for client in ("a1", "e1")]
    assert all(size > 0 for size in sizes)
    saved = states(federation)
    assert saved["a2"] == start["a2"]
    for client, own in ranks.items():
        found = {k: tuple(v.shape) for k, v in decode(saved[client]).tensors.items()}
        shapes = shapes_of(federation, client, own)
        assert found == {f"arm|held|{name}": shape for name, shape in shapes.items()}
    for client, reply in fit(federation).items():
        shapes = shapes_of(federation, client, ranks.get(client))
        assert {k: tuple(v.shape) for k, v in reply.tensors.items()} == shapes


def test_whoever_is_not_assigned_anything_trains_on(make):
    """With its moments, though a neighbour's larger adapter changes how all are stacked."""
    asked, plain = (opened(make, alone=False, train={"keep_moments": True}) for _ in range(2))
    for federation in (asked, plain):
        fit(federation)
    grant = encode({}, {"ranks": [8, 8, 8, 8], "point": None, "trial": False})
    answers(asked, "assign", {"a2": grant, "p1": grant})
    others = [client for client in CLIENTS if client not in ("a2", "p1")]
    found, wanted = fit(asked, others, 2), fit(plain, others, 2)
    assert all(alike(found[client], wanted[client]) for client in others)
    fresh = opened(make, alone=False, train={"keep_moments": True})
    answers(fresh, "assign", {"a2": grant, "p1": grant})
    assert alike(fit(asked, ["a2"], 3)["a2"], fit(fresh, ["a2"], 3)["a2"])


def test_fingerprints_have_the_shapes_the_server_expects(make):
    for head in (True, False):
        federation = opened(make, strategy="atlas", fingerprint={"head": head})
        asked = {c: make_request(federation, "fingerprint", c) for c in CLIENTS}
        for client, reply in answers(federation, "fingerprint", asked).items():
            expected = federation.plan.print_shapes[client]
            assert {k: tuple(v.shape) for k, v in reply.tensors.items()} == expected
            assert {v.dtype for v in reply.tensors.values()} == {torch.float32}
            parts = federation.plan.fingerprint.parts
            assert set(reply.facts["norms"]) == set(parts)
            assert all(reply.facts["norms"].values())


def score(federation, split, arm, clients=CLIENTS):
    asked = dict.fromkeys(clients, encode({}, {"split": split, "arm": arm}))
    return {c: r.facts["members"] for c, r in answers(federation, "evaluate", asked).items()}


def test_every_arm_is_scored_on_its_own_data(make):
    federation = opened(make)
    fit(federation)
    before = score(federation, "validation", "held")
    deliver(federation, {client: [make_offer(federation, client, 1, 1.0)] for client in CLIENTS})
    found = {arm: score(federation, split, arm) for split, arms in ARMS.items() for arm in arms}
    for arm, by_client in found.items():
        for client, members in by_client.items():
            assert set(members) == {client}
            known = {"loss", "accuracy", "score"} <= set(members[client])
            labels = federation.holders[client].data.task.labels
            assert known if labels or arm != "held" else set(members[client]) == {"loss"}
    for client in CLIENTS:
        # What came from others is in what is held and in what is ended with, not in the shadow.
        assert found["held"][client] != before[client]
        assert found["final"][client] != found["alone"][client]
    lonely = opened(make, alone=False)
    fit(lonely)
    replies = lonely.engine.ask("evaluate", requests("evaluate", split="test", arm="alone"))
    assert all(isinstance(reply, Failure) for reply in replies.values())
    assert set(score(lonely, "test", "final")) == set(CLIENTS)


@pytest.mark.parametrize("strategy", ["fedavg", "ditto", "flora"])
def test_the_shadow_is_scored_beside_what_is_held_and_nothing_changes(make, strategy):
    federation = opened(make, strategy=strategy, alone=True)
    fit(federation)
    before, plain = states(federation), score(federation, "validation", "held")
    both = requests("evaluate", split="validation", arm="held", beside="alone")
    told = {c: reply.facts for c, reply in answers(federation, "evaluate", both).items()}
    assert states(federation) == before
    first = {"members": {}, "alone": {}}
    for client, facts in told.items():
        first = {name: first[name] | own for name, own in facts.items()}
        assert facts["members"][client] == pytest.approx(plain[client][client], rel=1e-10)
    answers(federation, "deliver", {c: make_request(federation, "deliver", c) for c in CLIENTS})
    for client, reply in answers(federation, "evaluate", both).items():
        # What comes from others does not touch who trains alone.
        assert reply.facts["alone"][client] == pytest.approx(first["alone"][client], rel=1e-10)
    fit(federation, number=2)
    for client, reply in answers(federation, "evaluate", both).items():
        assert reply.facts["alone"][client] != first["alone"][client]
        assert reply.facts["alone"][client] != reply.facts["members"][client]
    lonely = opened(make, strategy=strategy, alone=False)
    replies = lonely.engine.ask("evaluate", both)
    assert all(isinstance(reply, Failure) for reply in replies.values())


def test_a_personal_adapter_goes_before_the_held_one(make):
    federation = opened(make, strategy="ditto")
    fit(federation)
    before = {split: score(federation, split, arms[0]) for split, arms in ARMS.items()}
    mine = answers(federation, "adapter", requests("adapter", arm="final"))
    deliver(federation, {client: [make_offer(federation, client, 1, 1.0)] for client in CLIENTS})
    assert before == {split: score(federation, split, arms[0]) for split, arms in ARMS.items()}
    after = answers(federation, "adapter", requests("adapter", arm="final"))
    sent = held(states(federation), federation)
    for client in CLIENTS:
        assert adapter_sha256(mine[client].tensors) == adapter_sha256(after[client].tensors)
        assert adapter_sha256(mine[client].tensors) != adapter_sha256(sent[client])


def test_whoever_shares_an_adapter_is_scored_by_name(make):
    config = settings(adapter={"ranks": {}}, strategy="pooled")
    federation = make(config, make_clients())
    request = encode({}, {"split": "test", "arm": "final"})
    replies = federation.engine.ask("evaluate", dict.fromkeys(federation.holders, request))
    members = {client: set(decode(reply).facts["members"]) for client, reply in replies.items()}
    assert members == {
        "pooled-colour": {"a1", "a2"}, "pooled-shape": {"b1", "b2"}, "pooled-size": {"c1"},
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["gradient", "representation"])
def test_signatures_are_comparable_between_all_clients_and_change_nothing(make, kind):
    federation = opened(make)
    fit(federation)
    before = states(federation)
    relevance = {"sketch": 48, "anchors": 9, "batches": 1, "clip": 0.01, "noise": 1e-3}
    plan = RelevanceSettings(**relevance)
    asked = requests("signature", round=2, kind=kind, settings=plan.model_dump(mode="json"))
    found = answers(federation, "signature", asked)
    assert states(federation) == before
    for client, reply in found.items():
        values = reply.tensors["signature"]
        shapes = {"signature": (signature_width(kind, plan),)}
        expected = Expected(shapes, max_norm=longest(kind, plan))
        again, content = encode(reply.tensors, reply.facts), CONTRACTS["signature"].reply
        assert isinstance(check_reply(again, content, expected), Message)
        train = len(federation.holders[client].data.train)
        if kind == "gradient":
            assert reply.facts["examples"] == min(train, 16)
            assert reply.facts["clip"] == 0.01 < reply.facts["norm"]
            assert reply.facts["noise"] == pytest.approx(1e-5)
        else:
            told = {"examples": 9, "clip": None, "noise": 0.0}
            assert {name: reply.facts[name] for name in told} == told
            assert float(values.norm()) == pytest.approx(1.0)
    for client, reply in found.items():
        apart = answers(federation, "signature", {client: asked[client]})[client]
        assert apart.tensors["signature"].equal(reply.tensors["signature"])
    later = requests("signature", round=3, kind=kind, settings=plan.model_dump(mode="json"))
    again = answers(federation, "signature", later)["a1"].tensors["signature"]
    assert again.equal(found["a1"].tensors["signature"]) == (kind == "representation")
