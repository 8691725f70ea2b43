"""Rounds on the tiny backbone: what is sent is held, and each piece changes the outcome."""

from collections import Counter

import pytest
import torch

from atlas.build.federation import assemble
from atlas.federation.adapters.adapter import adapter_sha256
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Failure
from atlas.federation.mixing.deliver import unpack_mixtures
from atlas.federation.rounds import run_round, sample_clients
from tests.helpers import make_clients, make_config


class Spy:
    """Passes everything on, remembers it, and may tamper with replies."""

    def __init__(self, engine, tamper=None):
        self.engine, self.tamper, self.log = engine, tamper, []

    def ask(self, task, payloads):
        replies = self.engine.ask(task, payloads)
        if self.tamper:
            replies = {c: self.tamper(task, c, reply) for c, reply in replies.items()}
        self.log.append((task, dict(payloads), dict(replies)))
        return replies


def play(config, tamper=None, clients=None, rounds=None):
    federation = assemble(config, clients or make_clients())
    spy = Spy(federation.engine, tamper)
    events = []
    for _ in range(rounds or config.rounds):
        run_round(federation.plan, federation.state, spy, lambda e, f: events.append((e, dict(f))))
    return federation, spy, events


def held(federation, arm="held"):
    return {
        client: group.arms[arm].take(client)
        for group in federation.engine.groups
        for client in group.holders
    }


def hashes(federation, arm="held"):
    return {client: adapter_sha256(a) for client, a in held(federation, arm).items()}


def body(adapter):
    return {k: v for k, v in adapter.items() if not k.startswith("head/")}


def change(adapter, module, rank=3, alpha=16.0):
    a, b = adapter[f"lora_a/{module}"].double(), adapter[f"lora_b/{module}"].double()
    return alpha / rank * (b @ a)


def test_clients_hold_what_the_server_sent():
    federation, spy, events = play(make_config())
    sent = {c: decode(p) for c, p in [m for m in spy.log if m[0] == "deliver"][-1][1].items()}
    assert len(sent) == 5
    for client, adapter in held(federation).items():
        assert adapter_sha256(adapter) == adapter_sha256(unpack_mixtures(sent[client])[0])
    assert not federation.state.failures
    accepts = [fields["accept"] for event, fields in events if event == "delivered"]
    assert accepts == [1.0] * 10


def test_fedavg_is_the_data_weighted_mean_of_what_was_trained():
    federation, spy, _ = play(make_config(rounds=1))
    replies = {c: decode(r) for c, r in spy.log[0][2].items()}
    module = federation.models["a1"].layout.modules[0]
    counts = {client: reply.facts["examples"] for client, reply in replies.items()}
    assert counts == {"a1": 9, "a2": 14, "b1": 11, "b2": 8, "c1": 10}
    mean = sum(n * change(replies[c].tensors, module) for c, n in counts.items()) / 52
    u, s, vh = torch.linalg.svd(mean)
    wanted = (u[:, :3] * s[:3]) @ vh[:3]
    for adapter in held(federation).values():
        assert torch.allclose(change(adapter, module), wanted, atol=1e-6)
    heads = {c: r.tensors["head/classifier.weight"] for c, r in replies.items()}
    pair = (9 * heads["a1"] + 14 * heads["a2"]) / 23
    assert torch.allclose(held(federation)["a1"]["head/classifier.weight"], pair, atol=1e-6)
    # Heads mix only within a label set: the one client with three labels keeps its own.
    assert torch.equal(held(federation)["c1"]["head/classifier.weight"], heads["c1"])


def test_switching_fedavg_off_changes_adapters_and_the_control_does_not():
    averaged, _, _ = play(make_config())
    control, _, _ = play(make_config(strategy="local"))
    assert not set(hashes(averaged).values()) & set(hashes(control).values())
    # W = I through the same code leaves every client where training alone would.
    assert hashes(control) == hashes(control, "shadow")
    assert hashes(averaged, "shadow") == hashes(control, "shadow")


def test_personal_heads_never_travel():
    federation, spy, _ = play(make_config(strategy="fedavg-body"))
    for task, payloads, replies in spy.log:
        for message in [*payloads.values(), *replies.values()]:
            assert not [k for k in decode(message).tensors if k.startswith("head/")], task
    adapters = held(federation)
    assert adapter_sha256(body(adapters["a1"])) != adapter_sha256(
        body(held(federation, "shadow")["a1"])
    )
    module = federation.models["a1"].layout.modules[0]
    assert torch.allclose(change(adapters["a1"], module), change(adapters["b1"], module), atol=1e-6)
    head = "head/classifier.weight"
    assert not torch.allclose(adapters["a1"][head], adapters["a2"][head])


def test_pooled_trains_one_adapter_per_task_on_all_its_data():
    federation, spy, _ = play(make_config(strategy="pooled"))
    replies = {c: decode(r).facts["examples"] for c, r in spy.log[0][2].items()}
    assert replies == {"pooled-colour": 23, "pooled-shape": 19, "pooled-size": 10}
    request = encode({}, {"split": "test", "arm": "final"})
    answer = decode(federation.engine.ask("evaluate", {"pooled-colour": request})["pooled-colour"])
    assert sorted(answer.facts["members"]) == ["a1", "a2"]


def test_oracle_averages_within_tasks_only():
    federation, spy, events = play(make_config(strategy="oracle", rounds=1))
    module = federation.models["a1"].layout.modules[0]
    found = {client: change(adapter, module) for client, adapter in held(federation).items()}
    assert torch.allclose(found["a1"], found["a2"], atol=1e-6)
    assert torch.allclose(found["b1"], found["b2"], atol=1e-6)
    assert not torch.allclose(found["a1"], found["b1"], atol=1e-4)
    alone = held(federation, "shadow")
    assert adapter_sha256(held(federation)["c1"]) == adapter_sha256(alone["c1"])
    weights = next(fields["weights"] for event, fields in events if event == "mixed")
    assert weights[0] == pytest.approx([9 / 23, 14 / 23, 0, 0, 0])


def test_unequal_ranks_mix_and_keep_their_ranks():
    config = make_config(adapter={"ranks": {"a1": 2, "b1": [1, 2, 3, 4]}})
    federation, _, _ = play(config)
    shapes = [v.shape[0] for k, v in held(federation)["b1"].items() if k.startswith("lora_a/")]
    assert shapes == [1, 2, 3, 4]
    assert len(set(hashes(federation).values())) == 5


def corrupted(change_message):
    """A tamper function that spoils the fit reply of client a2 in round 1 only."""
    seen = Counter()

    def tamper(task, client, reply):
        if task == "fit" and client == "a2":
            seen[client] += 1
            if seen[client] == 1:
                return change_message(reply)
        return reply

    return tamper


def edited(edit):
    def apply(reply):
        message = decode(reply)
        tensors, facts = dict(message.tensors), dict(message.facts)
        edit(tensors, facts)
        return encode(tensors, facts)

    return apply


def _fill(value):
    def edit(tensors, facts):
        name = sorted(tensors)[0]
        tensors[name] = torch.full_like(tensors[name], value)

    return edit


def _reshape(tensors, facts):
    name = sorted(tensors)[0]
    tensors[name] = tensors[name][:1]


def _drop(tensors, facts):
    tensors.pop(sorted(tensors)[0])


def _add(tensors, facts):
    tensors["lora_a/other"] = torch.zeros(1)


def _double(tensors, facts):
    name = sorted(tensors)[0]
    tensors[name] = tensors[name].double()


BAD_REPLIES = {
    "nan": (edited(_fill(float("nan"))), "NaN or Inf"),
    "inf": (edited(_fill(float("inf"))), "NaN or Inf"),
    "huge": (edited(_fill(1e30)), "norm"),
    "shape": (edited(_reshape), "shape"),
    "missing": (edited(_drop), "is missing"),
    "extra": (edited(_add), "was not asked for"),
    "dtype": (edited(_double), "dtype"),
    "negative weight": (edited(lambda t, f: f.update(examples=-30)), "examples"),
    "zero weight": (edited(lambda t, f: f.update(examples=0)), "examples"),
    "float weight": (edited(lambda t, f: f.update(examples=2.5)), "examples"),
    "no weight": (edited(lambda t, f: f.pop("examples")), "examples"),
    "huge weight": (edited(lambda t, f: f.update(examples=10**18)), "examples"),
    "truncated": (lambda reply: reply[: len(reply) // 2], "format"),
    "empty": (lambda reply: b"", "format"),
    "noise": (lambda reply: bytes(range(256)) * 4, "format"),
    "oversize": (lambda reply: reply + bytes(10**6), "size"),
    "huge header": (lambda reply: (2**60).to_bytes(8, "little") + reply[8:], "header"),
}


@pytest.mark.parametrize("kind", sorted(BAD_REPLIES))
def test_bad_replies_are_refused_and_the_round_goes_on(kind):
    change_message, reason = BAD_REPLIES[kind]
    federation, _, events = play(make_config(alone=False), corrupted(change_message))
    refused = federation.state.refused
    assert [(entry["round"], entry["client"]) for entry in refused] == [(1, "a2")]
    assert reason in refused[0]["reason"]
    assert federation.state.round == 2
    # In the first round the mixture is made of the other four alone.
    first = next(fields for event, fields in events if event == "mixed")
    column = first["clients"].index("a2")
    assert all(row[column] == 0.0 for row in first["weights"])
    for adapter in held(federation).values():
        assert all(torch.isfinite(value).all() for value in adapter.values())


def test_a_refused_client_that_learns_from_nobody_gets_its_last_good_adapter_back():
    own = {"strategy": "fedavg", "relation": {"warmup": 1}, "alone": False}  # W = I in round 1
    federation, _, _ = play(make_config(**own), corrupted(edited(_fill(float("nan")))), rounds=1)
    start = assemble(make_config(**own), make_clients())
    assert hashes(federation)["a2"] == hashes(start)["a2"]
    assert hashes(federation)["a1"] != hashes(start)["a1"]


def test_failures_are_values():
    def lose(task, client, reply):
        return Failure("connection lost") if (task, client) == ("fit", "b1") else reply

    federation, _, _ = play(make_config(alone=False), lose)
    assert [f["reason"] for f in federation.state.failures] == ["fit: connection lost"] * 2
    assert federation.state.round == 2

    def lose_all(task, client, reply):
        return Failure("down") if task == "fit" else reply

    federation, _, _ = play(make_config(alone=False), lose_all)
    assert len(federation.state.failures) == 10
    assert federation.state.round == 2


def test_a_round_that_nobody_answers_takes_no_mixture_back():
    rounds = Counter()

    def lose_second(task, client, reply):
        rounds[task, client] += 1
        lost = task == "fit" and rounds[task, client] == 2
        return Failure("down") if lost else reply

    federation, spy, _ = play(make_config(alone=False, validate_every=0), lose_second)
    second = [m for m in spy.log if m[0] == "deliver"][1][1]
    assert len(second) == 5
    assert not any(decode(payload).tensors for payload in second.values())


def test_reach_says_whether_absent_clients_receive(monkeypatch):
    from dataclasses import replace

    from atlas.federation.strategies.base import STRATEGIES

    near = replace(STRATEGIES["fedavg"], name="near", reach="present")
    monkeypatch.setitem(STRATEGIES, "near", near)
    start = hashes(assemble(make_config(), make_clients()))
    for strategy, kept in (("fedavg", 0), ("near", 2)):
        config = make_config(strategy=strategy, sample=0.5, alone=False, rounds=1)
        federation, _, _ = play(config)
        found = hashes(federation)
        assert sum(found[client] == start[client] for client in found) == kept


def test_bytes_are_those_of_the_messages():
    federation, spy, _ = play(make_config())
    for client in federation.holders:
        down = sum(len(p[client]) for _, p, _ in spy.log if client in p)
        up = sum(len(r[client]) for _, _, r in spy.log if client in r)
        assert federation.state.ledger.totals[client] == {"up": up, "down": down}
    local, _, _ = play(make_config(strategy="local"))
    assert local.state.ledger.total("down") < federation.state.ledger.total("down") / 10


def test_sampling_is_addressed_and_absent_policies_differ():
    config = make_config(sample=0.5, alone=False, rounds=3)
    federation, spy, events = play(config)
    asked = [fields["clients"] for event, fields in events if event == "round_started"]
    assert all(len(clients) == 3 for clients in asked)
    assert asked == [sample_clients(federation.plan, federation.state, n) for n in (1, 2, 3)]
    assert len({tuple(clients) for clients in asked}) > 1
    last, _, last_events = play(make_config(sample=0.5, alone=False, rounds=3, absent="last"))
    assert hashes(last) != hashes(federation)
    weights = [torch.tensor(f["weights"]) for e, f in last_events if e == "mixed"]
    assert (weights[-1][0] > 0).sum() > 3
    weights = [torch.tensor(f["weights"]) for e, f in events if e == "mixed"]
    assert (weights[-1][0] > 0).sum() == 3


def test_absent_clients_count_with_what_they_last_sent():
    config = make_config(sample=0.5, alone=False, rounds=3, absent="last")
    federation, spy, events = play(config)
    sent = {}
    for task, _, replies in spy.log:
        if task == "fit":
            sent |= {client: decode(reply) for client, reply in replies.items()}
    module = federation.models["a1"].layout.modules[0]
    counts = {client: message.facts["examples"] for client, message in sent.items()}
    total = sum(counts.values())
    mean = sum(n * change(sent[c].tensors, module) for c, n in counts.items()) / total
    u, s, vh = torch.linalg.svd(mean)
    for adapter in held(federation).values():
        found = change(adapter, module)
        assert torch.allclose(found, (u[:, :3] * s[:3]) @ vh[:3], atol=1e-6)


def test_clients_that_were_not_asked_are_sent_nothing_under_local():
    config = make_config(strategy="local", sample=0.4, alone=False, rounds=1, validate_every=0)
    federation, spy, _ = play(config)
    asked = set(spy.log[0][1])
    assert len(asked) == 2
    assert set(federation.state.ledger.totals) == asked


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy": "fedavg-body"},
        {"strategy": "local"},
        {"train": {"keep_moments": True}},
        {"keep_best": True},
    ],
)
def test_a_client_that_blows_up_once_is_back_in_the_next_round(changes, monkeypatch):
    from atlas.engines.local import fit as training

    train = training.fit_on_cores

    def explode(store, course, settings, clock, *rest):
        fitted = train(store, course, settings, clock, *rest)
        if clock.round == 1:
            row = [lesson.client for lesson in course.lessons].index("a1")
            for value in fitted.stack.tensors.values():
                value[row] = float("nan")
            for first, second in fitted.moments.values():
                first[row], second[row] = float("nan"), float("nan")
        return fitted

    monkeypatch.setattr(training, "fit_on_cores", explode)
    federation, _, _ = play(make_config(rounds=3, **changes))
    assert [(f["round"], f["client"]) for f in federation.state.failures] == [(1, "a1")]
    assert "NaN" in federation.state.failures[0]["reason"]
    for arm in ("held", "shadow"):
        for adapter in held(federation, arm).values():
            assert all(torch.isfinite(value).all() for value in adapter.values())


def test_pooling_knows_the_default_backbone_and_the_largest_rank():
    from dataclasses import replace

    clients = make_clients()
    clients[0] = replace(clients[0], backbone="tiny")
    config = make_config(strategy="pooled", adapter={"ranks": {"a2": 5}})
    federation = assemble(config, clients)
    assert sorted(federation.holders) == ["pooled-colour", "pooled-shape", "pooled-size"]
    assert federation.ranks["pooled-colour"] == (5, 5, 5, 5)
    assert federation.ranks["pooled-shape"] == (3, 3, 3, 3)


def test_clients_one_by_one_are_the_slow_twin_of_the_stack():
    fast, _, _ = play(make_config(backbone={"dtype": "float64"}))
    slow, _, _ = play(make_config(backbone={"dtype": "float64"}, train={"stacked": False}))
    for client, adapter in held(fast).items():
        for name, value in adapter.items():
            assert torch.allclose(value, held(slow)[client][name], atol=1e-10, rtol=0)


def test_backbone_is_untouched_and_no_hooks_remain():
    federation, _, _ = play(make_config())
    backbone = federation.models["a1"].backbone
    before = backbone.fingerprint()
    play(make_config())
    assert backbone.fingerprint() == before
    linears = [m for i in range(backbone.depth) for m in backbone.linears(i).values()]
    assert linears
    assert not any(module._forward_hooks for module in linears)


@pytest.mark.parametrize("alone", [True, False])
def test_training_alone_is_validated_with_the_rest_where_there_is_a_shadow(alone):
    quiet, _, _ = play(make_config(alone=alone, validate_every=0))
    federation, spy, events = play(make_config(alone=alone))
    told = [fields for event, fields in events if event == "validated"]
    clients, rounds = len(federation.holders), federation.state.round
    assert len(told) == clients * rounds
    # One message for both, and bytes for one more arm only where there is one.
    asked = [payloads for task, payloads, _ in spy.log if task == "evaluate"]
    assert len(asked) == rounds
    assert {("alone" in fields) for fields in told} == {alone}
    sizes = {len(payload) for some in asked for payload in some.values()}
    plain = len(encode({}, {"split": "validation", "arm": "held"}))
    assert (min(sizes) > plain) == alone and len(sizes) == 1
    # Looking changes nothing.
    for arm in ("held", "shadow") if alone else ("held",):
        assert hashes(quiet, arm) == hashes(federation, arm)
    if alone:
        last = {f["client"]: f for f in told if f["round"] == rounds}
        assert all(f["alone"][c]["loss"] != f["members"][c]["loss"] for c, f in last.items())
