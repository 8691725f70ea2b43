"""Mixtures on the way to clients, and what is made of their answers."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from atlas.federation.adapters.adapter import Layout, Member, adapter_sha256
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.batching.backbone import HeadLayer
from atlas.federation.exchange.message import Message, MessageError, decode
from atlas.federation.mixing.deliver import (
    Taken,
    deliver,
    effective_weights,
    keepers,
    pack_mixtures,
    unpack_mixtures,
)
from atlas.federation.server import Server, ServerState
from atlas.federation.strategies.base import Strategy, identity

LAYOUT = Layout("law", ("m0",), ((5, 4),), (HeadLayer("classifier", 5, 0, True, "identity"),), 16.0)
NAMES = ("c0", "c1", "c2")
PLAIN = Strategy(name="plain", relation=identity)


def make_cohort(seed=0):
    members = [Member(name, (2,), ("no", "yes")) for name in NAMES]
    cohort = initial_cohort(LAYOUT, members, 0, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    return cohort.put(
        {
            name: {
                key: torch.randn(value.shape, generator=draw, dtype=torch.float64)
                for key, value in cohort.take(name).items()
            }
            for name in NAMES
        }
    )


def random_weights(seed, *shape):
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, 3, 3, generator=draw, dtype=torch.float64).softmax(-1)


OTHER = "0" * 64
"""The hash of something else."""


class Clients:
    """Clients that answer as they are told to; by default they take all of the first mixture."""

    def __init__(self, **answers):
        self.answers, self.got = answers, {}

    def ask(self, task, payloads):
        assert task == "deliver"
        self.got = {client: unpack_mixtures(decode(data)) for client, data in payloads.items()}
        return {client: self.reply(client, mixtures) for client, mixtures in self.got.items()}

    def reply(self, client, mixtures):
        held = adapter_sha256(mixtures[0]) if mixtures else OTHER
        usual = {"accept": 1.0, "pick": 0, "sha256": held}
        facts = {**usual, **self.answers.get(client, {})}
        return save({}, metadata={"facts": json.dumps(facts)})


def send(clients, mixed, weights, asked=NAMES, refused=(), rule=PLAIN):
    events = []
    state = ServerState({"law": mixed[0]})
    server = Server(state, clients, lambda event, fields: events.append((event, fields)), round=3)
    server.refused |= set(refused)
    own = keepers(mixed[0].clients, weights, rule)
    reached = [c for c in mixed[0].clients if c not in own or c in asked]
    return deliver(server, [m.select(reached) for m in mixed], own, rule), state, events


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def test_mixtures_come_out_as_they_went_in():
    offers = [make_cohort(seed).take("c1") for seed in (1, 2, 3)]
    message = decode(pack_mixtures(offers, {"round": 7}))
    assert message.facts == {"round": 7, "offers": 3}
    found = unpack_mixtures(message)
    assert len(found) == 3
    assert all(equal(one, two) for one, two in zip(found, offers, strict=True))
    assert unpack_mixtures(decode(pack_mixtures([], {}))) == []


@pytest.mark.parametrize("name", ["0", "0|", "|x", "x|y", "-1|x", "2|x", "1.0|x", "lora_a/m0"])
def test_tensors_that_belong_to_no_mixture_are_refused(name):
    tensors = {"0|x": torch.ones(1), "1|x": torch.ones(1), name: torch.ones(1)}
    with pytest.raises(MessageError, match="belongs to none of 2 mixtures"):
        unpack_mixtures(Message(tensors, {"offers": 2}))


@pytest.mark.parametrize("offers", [..., 10**9, -1, "1", True, None, 1.0])
def test_a_count_that_is_none_is_refused(offers):
    facts = {} if offers is ... else {"offers": offers}
    with pytest.raises(MessageError, match="mixtures in 1 tensors"):
        unpack_mixtures(Message({"0|x": torch.ones(1)}, facts))


def test_an_empty_mixture_is_refused():
    with pytest.raises(MessageError, match="one of 2 mixtures has no tensors"):
        unpack_mixtures(Message({"0|x": torch.ones(1), "0|y": torch.ones(1)}, {"offers": 2}))


@pytest.mark.parametrize("layers", [(), (2,)])
def test_effective_weights_equal_a_plain_loop(layers):
    offers = [random_weights(seed, *layers) for seed in (1, 2)]
    taken = {"c0": Taken(1, 0.25), "c2": Taken(0, 1.0)}
    found = effective_weights(NAMES, offers, taken)
    assert found.shape == offers[0].shape
    for layer in range(2) if layers else [...]:
        for k, name in enumerate(NAMES):
            # A client that did not answer took nothing.
            pick, share = {"c0": (1, 0.25), "c2": (0, 1.0)}.get(name, (0, 0.0))
            for j in range(3):
                wanted = share * float(offers[pick][layer][..., k, j]) + (1 - share) * (k == j)
                assert float(found[layer][..., k, j]) == pytest.approx(wanted, abs=1e-15)
    assert torch.allclose(found.sum(-1), torch.ones(3).double())


def test_everything_taken_is_w_and_nothing_taken_is_the_identity():
    (weights,) = offers = [random_weights(1)]
    everything = dict.fromkeys(NAMES, Taken(0, 1.0))
    assert torch.equal(effective_weights(NAMES, offers, everything), weights)
    assert torch.equal(effective_weights(NAMES, offers, {}), torch.eye(3).double())


@pytest.mark.parametrize(
    "answer",
    [
        {"more": 1},
        {"accept": None},
        {"accept": "1.0"},
        {"accept": True},
        {"accept": [1.0]},
        {"accept": math.nan},
        {"accept": math.inf},
        {"accept": -0.5},
        {"accept": 1.5},
        {"accept": 1.0, "pick": 2},
        {"accept": 1.0, "pick": -1},
        {"accept": 1.0, "pick": 1.0},
        {"accept": 1.0, "pick": "1"},
        {"accept": 1.0, "pick": True},
        {"accept": 1.0, "pick": None},
    ],
    ids=json.dumps,
)
def test_an_answer_that_is_none_counts_as_nothing_taken(answer):
    mixed, weights = [make_cohort(1), make_cohort(2)], [random_weights(1), random_weights(2)]
    taken, state, _ = send(Clients(c1=answer), mixed, weights)
    assert taken == {"c0": Taken(0, 1.0), "c2": Taken(0, 1.0)}
    effective = effective_weights(NAMES, weights, taken)
    assert effective[1].tolist() == [0.0, 1.0, 0.0]
    assert effective[0].tolist() == weights[0][0].tolist()
    assert [(entry["client"], entry["round"]) for entry in state.failures] == [("c1", 3)]


def test_answers_within_bounds_are_taken_at_their_word():
    mixed, weights = [make_cohort(1), make_cohort(2)], [random_weights(1), random_weights(2)]
    answers = {"c0": {"accept": 0.25, "pick": 1}, "c1": {"accept": 0}, "c2": {"accept": 0.5}}
    taken, state, events = send(Clients(**answers), mixed, weights)
    assert taken == {"c0": Taken(1, 0.25), "c1": Taken(0, 0.0), "c2": Taken(0, 0.5)}
    assert [f["client"] for event, f in events if event == "delivered"] == list(NAMES)
    assert all(fields["round"] == 3 for _, fields in events)
    assert not state.failures


def test_every_client_is_sent_its_own_row_of_every_mixture():
    clients, mixed = Clients(), [make_cohort(1), make_cohort(2)]
    send(clients, mixed, [random_weights(1), random_weights(2)])
    for name in NAMES:
        for got, cohort in zip(clients.got[name], mixed, strict=True):
            assert equal(got, cohort.take(name))


def test_who_keeps_its_own_is_sent_nothing_unless_its_reply_was_refused():
    identity, weights = torch.eye(3, dtype=torch.float64), random_weights(1)
    keeps = torch.stack([identity[0], weights[1], identity[2]])
    mixed = [make_cohort(1)]
    clients = Clients()
    taken, state, _ = send(clients, mixed, [keeps], refused=["c2"])
    assert {name: len(got) for name, got in clients.got.items()} == {"c0": 0, "c1": 1, "c2": 1}
    assert equal(clients.got["c2"][0], mixed[0].take("c2"))
    assert not state.failures
    # Who was not asked this round hears only of news.
    clients = Clients()
    send(clients, mixed, [keeps], asked=["c1"])
    assert set(clients.got) == {"c1"}
    send(clients, mixed, [weights], asked=["c1"])
    assert set(clients.got) == set(NAMES)
    # One choice, or one layer, that differs from one's own is news.
    send(clients, [*mixed, make_cohort(2)], [identity, keeps])
    assert {name: len(got) for name, got in clients.got.items()} == {"c0": 0, "c1": 2, "c2": 0}
    send(clients, mixed, [torch.stack([identity, keeps])])
    assert {name: len(got) for name, got in clients.got.items()} == {"c0": 0, "c1": 1, "c2": 0}


def test_only_what_travels_is_sent():
    clients, mixed = Clients(), [make_cohort(1)]
    rule = replace(PLAIN, trains="b", heads="personal")
    _, state, _ = send(clients, mixed, [random_weights(1)], rule=rule)
    assert not state.failures
    for name in NAMES:
        assert equal(clients.got[name][0], {"lora_b/m0": mixed[0].take(name)["lora_b/m0"]})


def test_where_mixtures_are_merged_all_start_again_or_nobody_does():
    rule = replace(PLAIN, deliver="merge")
    identity_rows, weights = torch.eye(3, dtype=torch.float64), random_weights(1)
    keeps = torch.stack([identity_rows[0], weights[1], identity_rows[2]])
    clients, mixed = Clients(), [make_cohort(1)]
    send(clients, mixed, [keeps], rule=rule)
    assert {name: len(got) for name, got in clients.got.items()} == dict.fromkeys(NAMES, 1)
    send(clients, mixed, [identity_rows], refused=["c1"], rule=rule)
    assert {name: len(got) for name, got in clients.got.items()} == {"c0": 0, "c1": 1, "c2": 0}


def test_a_client_that_holds_something_else_is_told_on():
    mixed, weights = [make_cohort(1), make_cohort(2)], [random_weights(1), random_weights(2)]
    second = adapter_sha256(mixed[1].take("c0"))
    answers = {
        "c0": {"accept": 1.0, "pick": 1, "sha256": second},
        "c1": {"accept": 1.0, "pick": 1, "sha256": adapter_sha256(mixed[0].take("c1"))},
        "c2": {"accept": 0.75, "pick": 0, "sha256": OTHER},
    }
    _, state, _ = send(Clients(**answers), mixed, weights)
    (failure,) = state.failures
    assert failure["client"] == "c1"
    assert "does not hold what was sent" in failure["reason"]
