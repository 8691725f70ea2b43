"""Rounds of hetlora, flexlora, fedrot and ffa against plain loops, and each switched off."""

from dataclasses import replace

import pytest
import torch

from atlas.build.federation import assemble
from atlas.engines.local.deliver import blend
from atlas.federation.exchange.message import decode, encode
from atlas.federation.prepare import make_plan
from atlas.federation.rounds import run_round
from atlas.federation.strategies.base import STRATEGIES, View, data_shares
from atlas.federation.strategies.relations import norm_shares
from atlas.ops.optim import BETA1
from tests.federation.test_rounds import corrupted, edited, hashes, held, play
from tests.helpers import make_clients, make_config

UNEQUAL = {"ranks": {"a1": 2, "b1": [1, 2, 3, 4], "c1": 5}}
DOUBLE = {"dtype": "float64"}
ALPHA = 16.0


def exact(strategy, **changes):
    plain = {"backbone": DOUBLE, "adapter": UNEQUAL, "alone": False, "rounds": 1}
    return make_config(strategy=strategy, **{**plain, **changes})


def change(adapter, module):
    a, b = adapter[f"lora_a/{module}"].double(), adapter[f"lora_b/{module}"].double()
    return ALPHA / a.shape[0] * (b @ a)


def modules(federation):
    return federation.models["a1"].layout.modules


def replies(spy):
    return {c: decode(reply) for c, reply in spy.log[0][2].items()}


def mixed_events(events):
    return [fields for event, fields in events if event == "mixed"]


def factors(federation, kind="lora_a/", arm="held"):
    return {
        client: {k: v for k, v in adapter.items() if k.startswith(kind)}
        for client, adapter in held(federation, arm).items()
    }


def same(one, two):
    return all(torch.equal(one[c][k], two[c][k]) for c in one for k in one[c])


def test_hetlora_weights_by_the_norm_of_what_adapters_change():
    federation, spy, events = play(exact("hetlora"))
    sent = replies(spy)
    norms = [
        sum(float(change(reply.tensors, m).square().sum()) for m in modules(federation)) ** 0.5
        for reply in sent.values()
    ]
    shares = [norm / sum(norms) for norm in norms]
    for row in mixed_events(events)[0]["weights"]:
        assert row == pytest.approx(shares, abs=1e-12)
    counts = [reply.facts["examples"] for reply in sent.values()]
    assert shares != pytest.approx([n / sum(counts) for n in counts], abs=1e-3)


def test_hetlora_pads_with_zeros_and_cuts_to_each_rank():
    federation, spy, events = play(exact("hetlora"))
    shares = mixed_events(events)[0]["weights"][0]
    sent = [reply.tensors for reply in replies(spy).values()]
    for adapter in held(federation).values():
        for module in modules(federation):
            a, b = adapter[f"lora_a/{module}"], adapter[f"lora_b/{module}"]
            mean_a, mean_b = torch.zeros_like(a), torch.zeros_like(b)
            for share, other in zip(shares, sent, strict=True):
                other_a, other_b = other[f"lora_a/{module}"], other[f"lora_b/{module}"]
                scale = len(a) / len(other_a)  # alpha / r there over alpha / r here
                for slot in range(min(len(a), len(other_a))):
                    mean_a[slot] += share * other_a[slot]
                    mean_b[:, slot] += share * scale * other_b[:, slot]
            assert torch.allclose(a, mean_a, atol=1e-12)
            assert torch.allclose(b, mean_b, atol=1e-12)


def test_hetlora_falls_back_to_data_shares_where_nothing_was_learned():
    view = View(("x", "y"), torch.tensor([1.0, 3.0]).double(), ("t", "t"), 1)
    view = replace(view, norms=lambda: torch.zeros(2, dtype=torch.float64))
    assert torch.equal(norm_shares(view), data_shares(view))
    with pytest.raises(ValueError, match="needs the norms"):
        norm_shares(replace(view, norms=None))


def test_each_part_of_hetlora_changes_the_outcome(monkeypatch):
    whole = STRATEGIES["hetlora"]
    parts = {"by-data": {"relation": data_shares}, "by-product": {"space": "product"}}
    found = {"hetlora": hashes(play(exact("hetlora"))[0])}
    for name, part in parts.items():
        monkeypatch.setitem(STRATEGIES, name, replace(whole, name=name, **part))
        found[name] = hashes(play(exact(name))[0])
    for client in found["hetlora"]:
        assert len({hashed[client] for hashed in found.values()}) == 3


def test_each_part_of_fedrot_changes_the_outcome(monkeypatch):
    whole = STRATEGIES["fedrot"]
    parts = {
        "unturned": {"align": "none"},
        "by-product": {"align": "none", "space": "product"},
        "alone": {"relation": STRATEGIES["local"].relation},
    }
    found = {"fedrot": hashes(play(exact("fedrot"))[0])}
    for name, part in parts.items():
        monkeypatch.setitem(STRATEGIES, name, replace(whole, name=name, **part))
        found[name] = hashes(play(exact(name))[0])
    for client in found["fedrot"]:
        assert len({hashed[client] for hashed in found.values()}) == 4


def test_fedrot_tells_how_far_factors_are_from_a_common_gauge(monkeypatch):
    config = exact("fedrot", rounds=3, train={"lr": 0.3})
    events = mixed_events(play(config, rounds=3)[2])
    for entry in events:
        assert 0 < entry["gauge"]["after"] < entry["gauge"]["before"] < 2
    assert "gauge" not in mixed_events(play(exact("hetlora"))[2])[0]
    alone = replace(STRATEGIES["fedrot"], name="alone", relation=STRATEGIES["local"].relation)
    monkeypatch.setitem(STRATEGIES, "alone", alone)
    assert mixed_events(play(exact("alone"))[2])[0]["gauge"] is None


def test_flexlora_mixes_what_fedavg_mixes_in_another_gauge():
    flex, _, flex_events = play(exact("flexlora"), rounds=2)
    plain, _, plain_events = play(exact("fedavg"), rounds=2)
    one, two = (mixed_events(events) for events in (flex_events, plain_events))
    assert one[0]["error"] == pytest.approx(two[0]["error"], rel=1e-9)
    assert one[0]["error"]["mean"] > 1e-3, "unequal ranks are cut"
    # From the second round on training has gone on from other factors.
    assert one[1]["error"] != pytest.approx(two[1]["error"], rel=1e-6)
    first = [play(exact(name))[0] for name in ("flexlora", "fedavg")]
    for client, adapter in held(first[0]).items():
        for module in modules(flex):
            other = held(first[1])[client]
            assert torch.allclose(change(adapter, module), change(other, module), atol=1e-10)
            a = adapter[f"lora_a/{module}"]
            assert torch.allclose(a @ a.T, torch.eye(len(a)).double(), atol=1e-10)
            assert not torch.allclose(a, other[f"lora_a/{module}"], atol=1e-3)
    last = modules(flex)[-1]
    assert not torch.allclose(
        change(held(flex)["a1"], last), change(held(plain)["a1"], last), atol=1e-6
    )


@pytest.mark.parametrize("changes", [{}, {"keep_best": True}, {"train": {"weight_decay": 0.5}}])
def test_ffa_never_moves_a(changes):
    config = make_config(strategy="ffa", adapter=UNEQUAL, **changes)
    start = assemble(config, make_clients())
    a, b = factors(start), factors(start, "lora_b/")
    federation, _, _ = play(config)
    assert same(factors(federation), a)
    assert not same(factors(federation, "lora_b/"), b)
    assert not same(factors(federation, arm="shadow"), a), "alone, both factors are trained"


def test_taking_a_share_leaves_an_a_that_is_not_trained():
    config = exact("ffa", alone="needed", keep_best=True)
    cohort = assemble(config, make_clients()).engine.groups[0].arms["held"]
    # B and heads of ones; the mixture has three of each.
    ones = {k: v if "lora_a/" in k else torch.ones_like(v) for k, v in cohort.tensors.items()}
    threes = {k: v if "lora_a/" in k else 3 * v for k, v in ones.items()}
    own, mixture = replace(cohort, tensors=ones), replace(cohort, tensors=threes)
    found = blend(own, mixture, 0.25)
    for client in cohort.clients:
        before, after = own.take(client), found.take(client)
        for name, value in after.items():
            if name.startswith("lora_a/"):
                assert torch.equal(value, before[name])
            else:
                assert torch.allclose(value, 1.5 * before[name], atol=1e-12)


def test_ffa_leaves_the_shadow_alone():
    ffa, _, _ = play(make_config(strategy="ffa"))
    plain, _, _ = play(make_config(strategy="fedavg"))
    assert hashes(ffa, "shadow") == hashes(plain, "shadow")
    assert not set(hashes(ffa).values()) & set(hashes(plain).values())


def test_ffa_averages_b_and_is_exact_at_equal_ranks():
    config = make_config(strategy="ffa", backbone=DOUBLE, alone=False, rounds=1)
    federation, spy, events = play(config)
    sent = replies(spy)
    counts = {client: reply.facts["examples"] for client, reply in sent.items()}
    for name in (f"lora_b/{module}" for module in modules(federation)):
        mean = sum(n * sent[c].tensors[name] for c, n in counts.items()) / 52
        for adapter in held(federation).values():
            assert torch.allclose(adapter[name], mean, atol=1e-14)
    assert mixed_events(events)[0]["error"]["worst"] < 1e-14
    assert mixed_events(play(exact("ffa"))[2])[0]["error"]["mean"] > 1e-3


def test_ffa_never_sends_a_and_saves_its_bytes():
    federation, spy, _ = play(make_config(strategy="ffa", validate_every=0))
    for _, payloads, answers in spy.log:
        for message in [*payloads.values(), *answers.values()]:
            assert not [name for name in decode(message).tensors if "lora_a/" in name]
    plain, _, _ = play(make_config(strategy="fedavg", validate_every=0))
    layout = federation.models["a1"].layout
    # Two rounds, five clients, rank 3, four bytes.
    numbers = 2 * 5 * 3 * 4 * sum(d_in for d_in, _ in layout.widths)
    for direction in ("up", "down"):
        saved = plain.state.ledger.total(direction) - federation.state.ledger.total(direction)
        assert saved >= numbers
        assert saved < 1.5 * numbers, "beside the numbers only their names are saved"


def test_ffa_refuses_an_a_and_gives_back_what_it_knows():
    def add_a(tensors, facts):
        name = sorted(tensors)[-1]
        tensors[name.replace("lora_b/", "lora_a/")] = tensors[name].clone()

    federation, _, _ = play(make_config(strategy="ffa", alone=False), corrupted(edited(add_a)))
    assert "was not asked for" in federation.state.refused[0]["reason"]
    assert not federation.state.failures


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_tells_its_error(name):
    changes = {"alone": "needed"}
    if STRATEGIES[name].adapter == "pq":
        changes["adapter"] = {"ranks": {}}  # cores are of one rank
    for entry in mixed_events(planned_round(exact(name, **changes))):
        if STRATEGIES[name].sends == "nothing":
            assert "error" not in entry, "the server has no adapters to measure"
            continue
        if entry["error"] is None:
            assert all(row[k] == 1.0 for k, row in enumerate(entry["weights"]))
            assert STRATEGIES[name].relation is not data_shares
            continue
        assert 0 <= entry["error"]["mean"] <= entry["error"]["worst"] < 2
        if STRATEGIES[name].space in ("stack", "core"):
            assert entry["error"]["worst"] < 1e-14
        elif STRATEGIES[name].space != "factors":
            assert entry["error"]["worst"] < 1, "a cut is nearer than nothing"


def planned_round(config):
    """The events of one round of a strategy that may need a plan first."""
    federation = assemble(config, make_clients())
    events = []

    def observe(event, fields):
        events.append((event, dict(fields)))

    make_plan(federation.plan, federation.state, federation.engine, observe)
    run_round(federation.plan, federation.state, federation.engine, observe)
    return events


def test_the_error_told_is_that_of_dense_matrices():
    federation, spy, events = play(exact("fedavg"))
    entry, sent = mixed_events(events)[0], replies(spy)
    found = []
    for k, adapter in enumerate(held(federation).values()):
        gap = size = 0.0
        for module in modules(federation):
            pairs = zip(entry["weights"][k], sent.values(), strict=True)
            mixture = sum(share * change(reply.tensors, module) for share, reply in pairs)
            gap += float((change(adapter, module) - mixture).square().sum())
            size += float(mixture.square().sum())
        found.append((gap / size) ** 0.5)
    assert entry["error"]["mean"] == pytest.approx(sum(found) / 5, rel=1e-9)
    assert entry["error"]["worst"] == pytest.approx(max(found), rel=1e-9)


def test_ffa_clips_by_what_it_trains():
    settings = {"epochs": None, "steps": 1, "clip": 1e-3, "keep_moments": True}
    config = make_config(strategy="ffa", train=settings, backbone=DOUBLE)
    federation = assemble(config, make_clients())
    group = federation.engine.groups[0]
    for arm, cohort in group.arms.items():
        # With B = 0 the gradient of A would be zero anyway.
        loud = {k: v + 0.1 if k.startswith("lora_b/") else v for k, v in cohort.tensors.items()}
        group.arms[arm] = replace(cohort, tensors=loud)
    federation.engine.ask("fit", dict.fromkeys(federation.holders, encode({}, {"round": 1})))
    for arm, still in (("held", True), ("shadow", False)):
        # After one step from fresh moments the first moment is (1 - beta1) times the gradient.
        grads = {k: first / (1 - BETA1) for k, first in group.moments[arm].first.tensors.items()}
        for name, value in grads.items():
            assert bool(value.any()) != (still and name.startswith("lora_a/"))
        norms = sum(value.square().flatten(1).sum(1) for value in grads.values()).sqrt()
        assert torch.allclose(norms, torch.full_like(norms, 1e-3), rtol=1e-2)
