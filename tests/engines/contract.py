"""What the tests of any engine need: unlike clients, requests of every task, good and spoilt.

Everything here and in the tests asks an engine through `Transport.ask` alone, and looks at nothing
but its answers.
"""

from dataclasses import replace

import torch

from atlas.build.federation import assemble, on_flower
from atlas.federation.adapters.adapter import Member, adapter_sha256, adapter_shapes
from atlas.federation.exchange.contents import SHARES
from atlas.federation.exchange.message import Message, decode, encode
from atlas.federation.exchange.transport import CONTRACTS, Failure
from atlas.federation.mixing.deliver import pack_mixtures
from tests.engines.local import test_causal as causal
from tests.helpers import make_client, make_config, make_task


def over_flower(config, clients):
    """The same on nodes of Flower's simulation."""
    federation = assemble(config, clients)
    federation.engine = on_flower(federation)
    return federation


ENGINES = {"local": assemble, "flower": over_flower}
"""Settings and clients to a `Federation`, by the engine it runs on; all tests run on each."""
RANKS = {"a1": 2, "c1": [1, 2, 3, 4], "e1": 5, "s1": [2, 1, 1, 3]}
"""Unequal ranks, in both cohorts and within one client; the others have the common one."""
CLIENTS = ("a1", "a2", "c1", "e1", "p1", "s1")


def make_people():
    """Two backbones; tasks with two labels, with three, with free answers and with choices."""
    three = make_task("size", ("small", "middle", "large"))
    pair = [
        causal.client("e1", causal.ECHO, causal.free, 1),
        causal.client("p1", causal.PICK, causal.chosen, 7),
    ]
    return [
        make_client("a1", train=9, seed=1),
        make_client("a2", train=14, seed=2),
        make_client("c1", three, train=10, seed=5),
        *(replace(client, backbone="tiny-causal") for client in pair),
        make_client("s1", train=8, seed=3, backbone="tiny-causal"),
    ]


def settings(**changes):
    """Settings of a small federation of `make_people`, exact enough to be compared."""
    base = {
        "backbone": {"dtype": "float64", "max_length": 40, "max_new_tokens": 2},
        "adapter": {"ranks": RANKS},
        "fingerprint": {"sketch": 16, "folds": 2},
    }
    for key, value in changes.items():
        both = isinstance(value, dict) and key in base
        base[key] = {**base[key], **value} if both else value
    return make_config(**base)


class Witness:
    """Passes everything on, and holds what is asked and answered against the contract.

    Attributes:
        log: Every ask: task, requests and replies by client, decoded.
    """

    def __init__(self, engine):
        self.engine, self.log = engine, []

    def ask(self, task, payloads):
        requests = {client: decode(payload) for client, payload in payloads.items()}
        for request in requests.values():
            CONTRACTS[task].request.check(request)
        replies = self.engine.ask(task, payloads)
        answers = {client: decoded(reply) for client, reply in replies.items()}
        assert set(replies) == set(payloads), task
        for answer in answers.values():
            if isinstance(answer, Message):
                CONTRACTS[task].reply.check(answer)
        self.log.append((task, requests, answers))
        return replies


def decoded(reply):
    return reply if isinstance(reply, Failure) else decode(reply)


def opened(make, **changes):
    """A federation whose engine is watched by a `Witness`."""
    federation = make(settings(**changes), make_people())
    federation.engine = Witness(federation.engine)
    return federation


def answers(federation, task, requests):
    """Decoded answers of clients that must not fail."""
    replies = federation.engine.ask(task, requests)
    failed = {client: reply for client, reply in replies.items() if isinstance(reply, Failure)}
    assert not failed
    return {client: decode(reply) for client, reply in replies.items()}


def states(federation, clients=CLIENTS):
    """What clients keep to themselves, as they would save it."""
    return federation.engine.ask("save", dict.fromkeys(clients, encode({}, {})))


def load(federation, saved):
    answers(federation, "load", saved)


def restore(federation, saved):
    """Put clients back to where they were, as a resumed run does: ranks first, then the rest."""
    granted = {
        client: encode({}, {"ranks": list(federation.ranks[client]), "point": None, "trial": False})
        for client in saved
    }
    answers(federation, "assign", granted)
    load(federation, saved)


def fit(federation, clients=CLIENTS, number=1):
    return answers(federation, "fit", dict.fromkeys(clients, encode({}, {"round": number})))


def held(saved, federation):
    """Of saved states, the part of each held adapter that travels."""
    found = {}
    for client, state in saved.items():
        named = {k.split("|", 2)[2]: v for k, v in decode(state).tensors.items()
                 if k.startswith("arm|held|")}  # fmt: skip
        found[client] = {k: v for k, v in named.items() if travels(federation, k)}
    return found


def travels(federation, name):
    return federation.plan.strategy.travels(name)


def shapes_of(federation, client, ranks=None):
    """Name and shape of every tensor of a client's adapter, heads included."""
    layout = federation.models[client].layout
    labels = federation.holders[client].data.task.label_set
    return adapter_shapes(layout, Member(client, tuple(ranks or federation.ranks[client]), labels))


def make_offer(federation, client, seed, size=0.05):
    """A mixture that a client could be offered, drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: size * torch.randn(shape, generator=draw, dtype=torch.float64)
        for name, shape in sorted(shapes_of(federation, client).items())
        if travels(federation, name)
    }


def requests(task, **facts):
    """The same request for everybody, with every fact that the contract names."""
    fields = CONTRACTS[task].request.facts.model_fields
    usual = {name: field.default for name, field in fields.items() if not field.is_required()}
    facts = {**usual, **facts}
    assert set(facts) == set(fields)
    return dict.fromkeys(CLIENTS, encode({}, facts))


def make_request(federation, task, client):
    """A request of any task as the server would send it to a client that is at its start."""
    prints = federation.plan.fingerprint.model_dump(mode="json")
    relevance = federation.plan.relevance.model_dump(mode="json")
    ranks = [1, 3, 2, 2]
    facts = {
        "fingerprint": {"settings": prints},
        "capacity": {},
        "assign": {"ranks": ranks, "point": 1, "trial": False},
        "fit": {"round": 1, "open": None, "measure": None},
        "signature": {"round": 1, "kind": "gradient", "settings": relevance},
        "evaluate": {"split": "test", "arm": "alone"},
        "adapter": {"arm": "final", "form": "plain"},
        "save": {},
    }
    if task == "deliver":
        seeds = (1,) if federation.plan.strategy.deliver == "merge" else (1, 2)
        offers = [make_offer(federation, client, seed) for seed in seeds]
        return pack_mixtures(offers, {"round": 1})
    if task == "load":
        return states(federation, [client])[client]
    return encode({}, facts[task])


def spoilt_facts(content, facts):
    """Facts that are not what a content holds: one too many, one too few, one of another kind."""
    yield "a fact too many", {**facts, "more": 1}
    for name, field in content.facts.model_fields.items():
        if field.is_required():
            yield f"no {name}", {key: value for key, value in facts.items() if key != name}
        yield f"{name} is no such thing", {**facts, name: [{"none": -1}]}


def spoilt_requests(federation, task, client):
    """Requests of a task that are not as they should be, each with what is wrong about it."""
    payload = make_request(federation, task, client)
    tensors, facts = decode(payload).tensors, decode(payload).facts
    yield "no message", b"junk"
    yield "cut short", payload[:-3] if tensors else payload[: len(payload) // 2]
    yield "a tensor too many", encode({**tensors, "more": torch.zeros(1)}, facts)
    for what, changed in spoilt_facts(CONTRACTS[task].request, facts):
        yield what, encode(tensors, changed)
    for changes in SPOILT_FACTS.get(task, ()):
        yield str(changes), encode(tensors, {**facts, **changes})
    for name in sorted(tensors)[:1]:
        left = {key: value for key, value in tensors.items() if key != name}
        yield "a tensor too few", encode(left, facts)
        yield "a tensor of another shape", encode({**left, name: tensors[name][:-1]}, facts)
    if task == "deliver":
        yield "of another dtype", encode({k: v.float() for k, v in tensors.items()}, facts)
    if task == "load":
        yield "of another client", states(federation, ["p1"])["p1"]


SPOILT_FACTS = {
    "fingerprint": [{"settings": {"blocks": 9}}, {"settings": {"folds": 0}}],
    "assign": [
        {"ranks": [1, 2, 3]}, {"ranks": [1, 2, 3, 10**6]}, {"ranks": [0, 1, 1, 1]},
        {"ranks": [True, 1, 1, 1]}, {"point": 0}, {"point": 99}, {"trial": 1},
    ],
    "fit": [{"round": 0}, {"round": 1.0}, {"round": True}],
    "signature": [
        {"round": 0}, {"kind": "none"}, {"settings": {"sketch": 0}}, {"settings": {"ema": 1.0}},
    ],
    "deliver": [{"offers": 1}, {"offers": 3}, {"offers": -1}, {"offers": True}, {"round": 0}],
    "evaluate": [
        {"arm": "held"}, {"split": "validation"}, {"split": "train"}, {"arm": "shadow"},
        {"beside": "alone"}, {"beside": "final"},
    ],
    "adapter": [{"arm": "alone"}, {"arm": "held"}],
    "load": [{"accept": 0.3}, {"accept": True}],
}  # fmt: skip


def alike(one, two):
    """Whether two answers are the same but for the last digits."""
    assert set(one.tensors) == set(two.tensors)
    for name, value in one.tensors.items():
        assert torch.allclose(value, two.tensors[name], atol=1e-10, rtol=0), name
    return _alike(one.facts, two.facts)


def _alike(one, two):
    if isinstance(one, dict) and isinstance(two, dict):
        return set(one) == set(two) and all(_alike(one[key], two[key]) for key in one)
    if isinstance(one, float) and isinstance(two, float):
        return abs(one - two) <= 1e-10 * max(1.0, abs(one))
    return one == two


def check_delivery(federation, client, offers, facts):
    """Hold what a client says it took against what it was offered and what it now holds."""
    assert facts["accept"] in SHARES
    assert 0 <= facts["pick"] < max(1, len(offers))
    now = held(states(federation, [client]), federation)[client]
    assert facts["sha256"] == adapter_sha256(now)
    if facts["accept"] == 1.0:
        assert facts["sha256"] == adapter_sha256(offers[facts["pick"]])
    if facts["accept"] == 0.0:
        assert facts["pick"] == 0
