"""What is delivered stands beside clients' own adapters, across backbones, and a gate weighs it."""

from dataclasses import replace

import pytest
import torch

from atlas.build.federation import assemble
from atlas.engines.local.capacity import take_ranks
from atlas.errors import InputError
from atlas.federation.adapters.adapter import adapter_sha256
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Failure
from atlas.federation.prepare import make_plan
from atlas.federation.rounds import run_round
from tests.federation.test_rounds import play
from tests.helpers import make_client, make_clients, make_config, make_task, reloaded, wide_tiny

PQ = {
    "strategy": "mosaic",
    "adapter": {"rank": 3, "sends": "local"},
    "train": {"lr": 0.05, "gate_lr": 0.2},
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return wide_tiny(tmp_path_factory.mktemp("models") / "wide")


def two_backbones(wide):
    """Two clients on each of two backbones of other widths and depths."""
    task = make_task()
    return [
        make_client("a1", task, seed=1, backbone="tiny"),
        make_client("a2", task, seed=2, backbone="tiny"),
        make_client("w1", task, seed=3, backbone=wide),
        make_client("w2", task, seed=4, backbone=wide),
    ]


def cohort_of(federation, client, arm="held"):
    return next(g.arms[arm] for g in federation.engine.groups if client in g.holders)


def test_cores_cross_backbones_of_other_widths_and_depths(wide):
    federation, _, events = play(make_config(**PQ), clients=two_backbones(wide), rounds=1)
    trained = federation.state.cohorts["core"]
    assert trained.clients == ("a1", "a2", "w1", "w2")
    shares = next(fields["weights"] for event, fields in events if event == "mixed")
    assert all(shares[k][k] == 0.0 for k in range(4)), "one's own is there already"
    assert any(shares[0][2:]) and any(shares[2][:2]), "foreign backbones count"
    for k, client in enumerate(trained.clients):
        cohort = cohort_of(federation, client)
        slot = cohort.slot.cohort.take(client)
        others = [trained.take(other) for other in trained.clients]
        for name, value in slot.items():
            wanted = sum(w * other[name] for w, other in zip(shares[k], others, strict=True))
            assert torch.allclose(value, wanted, atol=1e-6)
            assert value.any(), "there is something in it"
        assert cohort.slot.ready[client] == set(cohort.layout.modules)
        assert adapter_sha256(
            cohort.take(client).only(federation.plan.strategy.travels)
        ) == adapter_sha256(trained.take(client)), "one's own adapter stays what it was"
    assert not [fields for event, fields in events if event == "failure"]


def test_gates_wait_for_the_first_delivery_and_then_start_at_one_half(wide):
    _, _, events = play(make_config(**PQ), clients=two_backbones(wide), rounds=2)
    told = [fields for event, fields in events if event == "fitted"]
    first = [beta for fields in told if fields["round"] == 1 for beta in fields["beta"]]
    second = [beta for fields in told if fields["round"] == 2 for beta in fields["beta"]]
    assert first and not any(first)
    assert all(0.2 < beta < 0.8 for beta in second)
    assert any(abs(beta - 0.5) > 0.01 for beta in second), "they are trained by then"


@pytest.mark.parametrize("gate", ["scalar", "input"])
def test_what_stands_beside_changes_what_a_client_answers(wide, gate):
    config = make_config(**{**PQ, "adapter": {"rank": 3, "gate": gate}})
    federation, _, _ = play(config, clients=two_backbones(wide), rounds=2)
    ask = encode({}, {"split": "test", "arm": "final"})

    def losses():
        replies = federation.engine.ask("evaluate", dict.fromkeys(federation.holders, ask))
        return {c: decode(r).facts["members"][c]["loss"] for c, r in replies.items()}

    before = losses()
    for group in federation.engine.groups:
        held = group.arms["held"]
        group.arms["held"] = type(held)(held.layout, held.members, held.tensors)
    after = losses()
    assert all(abs(before[client] - after[client]) > 1e-7 for client in before)


def test_both_cores_may_travel_as_the_gate_weighs_them(wide):
    config = make_config(**{**PQ, "adapter": {"rank": 3, "sends": "whole"}})
    federation, spy, events = play(config, clients=two_backbones(wide), rounds=1)
    before = {c: cohort_of(federation, c).slot.cohort.take(c) for c in ("a1", "w2")}
    first = next(replies for task, _, replies in spy.log if task == "fit")
    for client in before:
        sent, held = decode(first[client]).tensors, cohort_of(federation, client).take(client)
        assert torch.equal(sent["core_p/1.value"], held["core_p/1.value"]), "nothing is beside it"
    requests = {c: encode({}, {"round": 2, "open": None, "measure": None}) for c in before}
    for client, reply in federation.engine.ask("fit", requests).items():
        sent, facts = decode(reply).tensors, decode(reply).facts
        cohort = cohort_of(federation, client)
        own = cohort.take(client)
        for i, beta in enumerate(facts["beta"]):
            for name in cohort.layout.parts(i):
                wanted = (1 - beta) * own[name] + beta * before[client][name]
                assert torch.allclose(sent[name], wanted, atol=1e-6)
                assert not torch.allclose(sent[name], own[name], atol=1e-4)
    assert not [fields for event, fields in events if event in ("failure", "refused")]


def test_the_shadow_has_nothing_beside_it(wide):
    """Its training is that of a run in which nobody learns from anybody."""
    clients = two_backbones(wide)
    federation, _, _ = play(make_config(**PQ), clients=clients, rounds=2)
    alone, _, _ = play(
        make_config(**{**PQ, "strategy": "local", "adapter": {"rank": 3, "kind": "pq"}}),
        clients=clients,
        rounds=2,
    )
    for client in ("a1", "w2"):
        shadow = cohort_of(federation, client, "shadow").take(client)
        wanted = cohort_of(alone, client).take(client)
        for name, value in wanted.items():
            assert torch.allclose(shadow[name], value, atol=1e-5), name
        held = cohort_of(federation, client).take(client)
        assert not torch.allclose(held["core_p/1.query"], wanted["core_p/1.query"], atol=1e-3)


def test_plain_adapters_may_have_something_beside_them_too():
    from atlas.federation.strategies.base import STRATEGIES

    beside = replace(STRATEGIES["mosaic"], name="beside", space="product", adapter="lora")
    STRATEGIES["beside"] = beside
    try:
        changes = {"strategy": "beside", "adapter": {"ranks": {"a1": 2, "a2": 4}}}
        federation, _, events = play(make_config(**{**PQ, **changes}), rounds=2)
    finally:
        del STRATEGIES["beside"]
    assert not [fields for event, fields in events if event == "failure"]
    slot = cohort_of(federation, "a1").slot.cohort.take("a1")
    name = next(name for name in slot if name.startswith("lora_b"))
    assert slot[name].shape[1] == 2
    assert slot[name].any()


def test_granted_ranks_are_those_of_what_stands_beside_as_well():
    given = {"a1": 2, "a2": 4}
    config = make_config(
        strategy="simgrad",
        adapter={"rank": 3},
    )
    federation = assemble(config, make_clients())
    group = next(g for g in federation.engine.groups if "a1" in g.holders)
    modules = len(group.model.layout.modules)
    assigned = {
        client: encode({}, {"ranks": [rank] * modules, "point": None, "trial": True})
        for client, rank in given.items()
    }
    replies = federation.engine.ask("assign", assigned)
    for client, rank in given.items():
        slot = cohort_of(federation, client).slot
        assert not slot.ready.get(client), "nothing has come yet"
        sizes = {v.shape[1] for n, v in slot.cohort.take(client).items() if n.startswith("lora_b")}
        assert sizes == {rank}
    held = cohort_of(federation, "a1")
    group.arms["held"] = replace(held, slot=None)
    bare = decode(federation.engine.ask("assign", {"a1": assigned["a1"]})["a1"]).facts["bytes"]
    assert bare < decode(replies["a1"]).facts["bytes"], (
        "what stands beside takes memory, and a trial measures it"
    )


def test_a_run_that_grants_ranks_delivers_beside_adapters():
    config = make_config(
        strategy="simgrad",
        adapter={"ranks": {}},
        ranks={"method": "importance", "choices": [1, 2, 3], "budget": 1000},
    )
    federation, events = assemble(config, make_clients()), []
    given = (federation.plan, federation.state, federation.engine)
    for step in (make_plan, run_round, run_round):
        step(*given, lambda event, fields: events.append((event, dict(fields))))
    assert [fields for event, fields in events if event == "granted"]
    assert not [fields for event, fields in events if event in ("failure", "refused")]
    told = [fields for event, fields in events if event == "fitted" and fields["round"] == 2]
    assert told and all(any(fields["beta"]) for fields in told), "gates weigh what came"


def test_ranks_of_some_leave_what_stands_beside_the_others():
    federation, _, _ = play(make_config(strategy="simgrad", adapter={"rank": 3}), rounds=1)
    group = next(g for g in federation.engine.groups if "a1" in g.holders)
    before = group.arms["held"].slot
    take_ranks(group, {"a1": [5] * len(group.model.layout.modules)}, seed=0)
    after = group.arms["held"].slot
    assert not after.ready.get("a1") and after.ready["a2"] == before.ready["a2"]
    kept, was = after.cohort.take("a2"), before.cohort.take("a2")
    assert all(torch.equal(kept[name], value) for name, value in was.items())
    assert any(value.any() for name, value in was.items() if name.startswith("lora_b"))


def test_what_stands_beside_is_saved_and_goes_on(wide):
    config = make_config(**PQ)
    first, _, _ = play(config, rounds=1)
    second = reloaded(first, config)
    for client in ("a1", "c1"):
        here, there = cohort_of(first, client), cohort_of(second, client)
        assert here.slot.ready[client] == there.slot.ready[client]
        assert adapter_sha256(here.slot.cohort.take(client)) == adapter_sha256(
            there.slot.cohort.take(client)
        )
    damaged = first.engine.ask("save", {"a1": encode({}, {})})["a1"]
    message = decode(damaged)
    facts = {**message.facts, "ready": ["no.such.module"]}
    reply = second.engine.ask("load", {"a1": encode(message.tensors, facts)})["a1"]
    assert isinstance(reply, Failure) and "does not adapt" in reply.reason


def test_the_better_of_both_may_be_kept_at_the_end(wide):
    """Where a shadow is clearly better a client ends with it, and nothing beside it."""
    from atlas.engines.local.deliver import final_cohort

    config = make_config(**{**PQ, "keep_best": True, "keep_margin": 100.0})
    federation, _, _ = play(config, rounds=2)
    group = federation.engine.groups[0]
    held = group.arms["held"]
    broken = {name: value * float("nan") for name, value in held.take("a1").items()}
    group.arms["held"] = held.put({"a1": broken})
    final = final_cohort(group, "final", ["a1", "a2"])
    assert "a1" not in final.slot.ready
    assert final.slot.ready["a2"]
    shadow = group.arms["shadow"].take("a1")
    assert adapter_sha256(final.take("a1")) == adapter_sha256(shadow)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter": {"kind": "lora"}}, "adapter.kind: lora, but mosaic mixes cores"),
        ({"strategy": "flora", "adapter": {"kind": "pq"}}, "works on A and B"),
        ({"strategy": "ffa", "adapter": {"kind": "pq"}}, "works on A and B"),
        ({"adapter": {"ranks": {"a1": 2}}}, "one rank for all clients"),
        ({"split": {"point": 1}}, "split.point is set"),
        ({"adapter": {"gate": "input", "sends": "whole"}}, "weighs every token by itself"),
    ],
)
def test_what_does_not_go_with_cores_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        assemble(make_config(**{**PQ, **changes}), make_clients())


def test_other_blocks_have_plain_adapters_mixed_among_equal_backbones(wide):
    adapter = {"rank": 3, "blocks": 2, "others": 1}
    config = make_config(**{**PQ, "adapter": adapter})
    federation, _, events = play(config, clients=two_backbones(wide), rounds=2)
    assert not [fields for event, fields in events if event in ("failure", "refused")]
    cohorts = federation.state.cohorts
    assert set(cohorts) == {"core", "tiny", wide}
    assert cohorts["tiny"].clients == ("a1", "a2")
    for client, other in (("a1", "a2"), ("w1", "w2")):
        cohort = cohort_of(federation, client)
        slot = cohort.slot.cohort.take(client)
        plain = [m for i, m in enumerate(cohort.layout.modules) if not cohort.layout.place(i)]
        assert len(plain) == 2
        server = cohorts["tiny" if client == "a1" else wide].take(other)
        for module in plain:
            given = slot[f"lora_b/{module}"] @ slot[f"lora_a/{module}"]
            wanted = server[f"lora_b/{module}"] @ server[f"lora_a/{module}"]
            assert torch.allclose(given, wanted, atol=1e-5)
            assert wanted.any()
        given = slot["core_p/0.query"]
        foreign = [cohorts["core"].take(c)["core_p/0.query"] for c in ("a1", "a2", "w1", "w2")]
        assert not any(torch.allclose(given, one, atol=1e-6) for one in foreign)
    with pytest.raises(InputError, match=r"adapter\.others"):
        assemble(make_config(strategy="fedavg", adapter={"others": 1}), make_clients())
    with pytest.raises(InputError, match=r"adapter\.others"):
        assemble(make_config(**{**PQ, "adapter": {"others": 4, "rank": 3}}), make_clients())


def test_cores_are_spread_over_the_depth(wide):
    from atlas.build.models import adapted_blocks

    config = make_config(adapter={"blocks": 4, "placement": "spread"})
    assert adapted_blocks(30, config.adapter) == [6, 13, 20, 29]
    assert adapted_blocks(12, config.adapter) == [2, 5, 8, 11]
    assert adapted_blocks(5, config.adapter) == [0, 1, 2, 4]
    assert adapted_blocks(30, config.adapter, 2) == [6, 13, 20, 27, 28, 29]
    spread = {**PQ, "adapter": {"rank": 3, "blocks": 2, "placement": "spread"}}
    federation, _, _ = play(make_config(**spread), clients=two_backbones(wide), rounds=1)
    modules = cohort_of(federation, "w1").layout.modules
    assert [module.split(".")[2] for module in modules] == ["1", "1", "3", "3"]
    assert cohort_of(federation, "w1").layout.cores == cohort_of(federation, "a1").layout.cores


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "ditto", "atlas"])
def test_cores_work_under_other_strategies(wide, strategy):
    """Within equal backbones cores are averaged as they are, which is exact."""
    changes = {"strategy": strategy, "adapter": {"rank": 3, "kind": "pq"}}
    federation, _, events = play(
        make_config(**{**PQ, **changes}), clients=two_backbones(wide), rounds=1
    )
    assert not [fields for event, fields in events if event in ("failure", "refused")]
    if strategy != "fedavg":
        return
    one, two = (cohort_of(federation, client).take(client) for client in ("a1", "a2"))
    assert torch.equal(one["core_p/0.query"], two["core_p/0.query"])
    other = cohort_of(federation, "w1").take("w1")
    assert not torch.allclose(one["core_p/0.query"], other["core_p/0.query"])
    errors = [fields["error"]["worst"] for event, fields in events if event == "mixed"]
    assert max(errors) < 1e-6
