"""Clients accept a mixture only as far as their validation data says."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas.build.federation import assemble
from atlas.engines.local import deliver as choosing
from atlas.engines.local.deliver import (
    better_alone,
    blend,
    choose_best,
    clearly_better,
    final_cohort,
    fitness,
    validate,
)
from atlas.federation.adapters.adapter import adapter_sha256
from atlas.federation.exchange.contents import SHARES
from atlas.federation.exchange.message import encode
from atlas.federation.mixing.deliver import Taken
from atlas.federation.rounds import run_round
from atlas.ops.lowrank.factors import delta
from tests.helpers import make_clients, make_config

ARMS = ("held", "shadow")


def trained(rounds=2, **changes):
    federation = assemble(make_config(keep_best=True, **changes), make_clients())
    events = []
    for _ in range(rounds):
        run_round(
            federation.plan,
            federation.state,
            federation.engine,
            lambda event, fields: events.append((event, dict(fields))),
        )
    return federation, federation.engine.groups[0], events


def losses_of(group, cohort, client):
    return choosing._losses(group, cohort, [client])[client]


def neighbours_offers(federation, group):
    """Each of two clients is offered what the next one holds after another round."""
    clients = sorted(group.holders)
    federation.engine.ask("fit", {c: encode({}, {"round": 2}) for c in clients})
    own = group.arms["held"]
    return {
        c: [{**own.take(c), **{k: v for k, v in own.take(other).items() if k in own.take(c)}}]
        for c, other in zip(clients[:2], clients[1:3], strict=True)
    }


def test_the_fittest_share_is_never_worse_on_validation_than_ones_own():
    federation, group, _ = trained(1)
    group.accepting = "fittest"
    offers = neighbours_offers(federation, group)
    own = group.arms["held"]
    tried = {
        client: {
            share: losses_of(group, blend(own, own.put({client: offers[client][0]}), share), client)
            for share in SHARES
        }
        for client in offers
    }
    for client, found in choose_best(group, offers).items():
        assert fitness(tried[client][found.accept]) == max(map(fitness, tried[client].values()))


def test_all_is_taken_unless_ones_own_is_clearly_better(monkeypatch):
    federation, group, _ = trained(1)
    offers, own = neighbours_offers(federation, group), group.arms["held"]
    clear = {
        client: clearly_better(
            losses_of(group, own, client),
            losses_of(group, own.put({client: mixture}), client),
            group.margin,
        )
        for client, (mixture,) in offers.items()
    }
    for client, found in choose_best(group, offers).items():
        assert (found.accept == 1.0) != clear[client]
    group.arms["held"] = own
    monkeypatch.setattr(choosing, "clearly_better", lambda first, second, margin: True)
    insured = choose_best(group, offers)
    group.arms["held"] = own
    group.accepting = "fittest"
    assert {c: t.accept for c, t in insured.items()} == {
        c: t.accept for c, t in choose_best(group, offers).items()
    }


def test_a_harmful_mixture_is_declined_and_replace_would_have_taken_it():
    _, group, _ = trained(3)
    own = group.arms["held"].take("a2")
    poison = {k: torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) * 3
              for k, v in own.items()}  # fmt: skip
    before = losses_of(group, group.arms["held"], "a2")
    poisoned = losses_of(group, group.arms["held"].put({"a2": poison}), "a2")
    assert clearly_better(before, poisoned, group.margin)
    assert choose_best(group, {"a2": [poison]})["a2"].accept < 1.0
    assert fitness(losses_of(group, group.arms["held"], "a2")) >= fitness(before)


def test_an_equal_mixture_is_taken_and_nothing_offered_is_nothing_taken():
    _, group, _ = trained(1)
    same = group.arms["held"].take("b1")
    whole, nothing = Taken(0, 1.0), Taken(0, 0.0)
    assert choose_best(group, {"b1": [same], "a1": []}) == {"b1": whole, "a1": nothing}
    group.accepting = "fittest"
    assert choose_best(group, {"b1": [same], "a1": []}) == {"b1": nothing, "a1": nothing}


@pytest.mark.parametrize("margin", [1.0, 2.0])
def test_a_lead_is_clear_beyond_so_many_standard_errors(margin):
    draw = np.random.default_rng(0)
    second = draw.uniform(0, 1, 100)
    noise = draw.standard_normal(100)
    noise = (noise - noise.mean()) / noise.std(ddof=1)  # standard error 0.1
    assert clearly_better(second - 0.11 * margin + noise, second, margin)
    assert not clearly_better(second - 0.09 * margin + noise, second, margin)
    assert not clearly_better(second, second, margin)
    broken = np.full(100, np.nan)
    assert clearly_better(second, broken, margin) and not clearly_better(broken, second, margin)


def test_a_wider_margin_gives_up_fewer_mixtures():
    federation, group, _ = trained(1)
    offers, own = neighbours_offers(federation, group), group.arms["held"]
    taken = {}
    for group.margin in (0.0, 1e9):
        group.arms["held"] = own
        taken[group.margin] = [found.accept for found in choose_best(group, offers).values()]
    assert min(taken[0.0]) < 1.0 and set(taken[1e9]) == {1.0}
    group.arms["shadow"], group.arms["held"] = own, own.put({c: o[0] for c, o in offers.items()})
    group.margin = 0.0
    given_up = better_alone(group, sorted(group.holders))
    group.margin = 1e9
    assert better_alone(group, sorted(group.holders)) == [] != given_up


def test_the_margin_of_the_settings_decides_in_a_run():
    taken = {}
    for margin in (0.0, 1e9):
        _, group, events = trained(2, keep_margin=margin)
        assert group.margin == margin
        taken[margin] = [fields["accept"] for event, fields in events if event == "delivered"]
    assert min(taken[0.0]) < 1.0 == min(taken[1e9])


def test_logged_w_is_the_effective_one():
    _, _, events = trained(2)
    mixed = [fields for event, fields in events if event == "mixed"][-1]
    accepts = {f["client"]: f["accept"] for e, f in events if e == "delivered" and f["round"] == 2}
    shares = torch.tensor([9.0, 14.0, 11.0, 8.0, 10.0], dtype=torch.float64) / 52
    for row, client in enumerate(mixed["clients"]):
        wanted = accepts[client] * shares
        wanted[row] += 1 - accepts[client]
        assert torch.allclose(torch.tensor(mixed["weights"][row]).double(), wanted)


def all_right(group, arm, client, truth):
    """Set an arm's head so that it answers every example with `truth`, 0 or 1."""
    adapter = group.arms[arm].take(client)
    adapter["head/classifier.weight"] = torch.zeros_like(adapter["head/classifier.weight"])
    bias = torch.full_like(adapter["head/classifier.bias"], -5.0)
    bias[truth] = 5.0
    adapter["head/classifier.bias"] = bias
    group.arms[arm] = group.arms[arm].put({client: adapter})


def one_label(client, label):
    """The client with validation examples of one label only."""
    return replace(client, validation=tuple(replace(e, label=label) for e in client.validation))


def test_alone_is_delivered_where_validation_speaks_clearly_for_it():
    clients = [one_label(client, 1) for client in make_clients()]
    federation = assemble(make_config(keep_best=True), clients)
    group = federation.engine.groups[0]
    all_right(group, "held", "a1", 0)
    all_right(group, "shadow", "a1", 1)
    all_right(group, "held", "a2", 1)
    all_right(group, "shadow", "a2", 0)
    assert better_alone(group, ["a1", "a2", "b1"]) == ["a1"], "b1 is equal in both arms"
    final = final_cohort(group, "final", sorted(group.holders))
    for client, arm in (("a1", "shadow"), ("a2", "held"), ("b1", "held")):
        assert adapter_sha256(final.take(client)) == adapter_sha256(group.arms[arm].take(client))
    assert final_cohort(group, "alone", sorted(group.holders)) is group.arms["shadow"]
    group.keeps_best = False
    assert final_cohort(group, "final", sorted(group.holders)) is group.arms["held"]


def test_a_lead_within_one_standard_error_is_no_reason_to_leave():
    clients = make_clients()
    labels = [0, 1, 1, 0, 1, 1]
    mixed = [replace(e, label=i) for e, i in zip(clients[0].validation, labels, strict=True)]
    clients[0] = replace(clients[0], validation=tuple(mixed))
    group = assemble(make_config(keep_best=True), clients).engine.groups[0]
    all_right(group, "held", "a1", 0)
    all_right(group, "shadow", "a1", 1)
    scored = validate(group, [group.arms[arm] for arm in ARMS], ["a1"])
    held, shadow = (own["a1"]["score"] for own in scored)
    assert shadow > held, "alone is better by the number"
    assert better_alone(group, ["a1"]) == [], "and not by more than chance"


def test_a_held_adapter_that_blew_up_gives_way_to_alone():
    _, group, _ = trained(1)
    nan = {k: torch.full_like(v, torch.nan) for k, v in group.arms["held"].take("a1").items()}
    group.arms["held"] = group.arms["held"].put({"a1": nan})
    assert "a1" in better_alone(group, ["a1", "a2"])
    group.arms["shadow"] = group.arms["shadow"].put({"a2": nan})
    assert "a2" not in better_alone(group, ["a1", "a2"])


def test_blend_is_the_mixture_of_products_cut_to_rank():
    _, group, _ = trained(1)
    own = group.arms["held"]
    other = own.put({"a1": group.arms["shadow"].take("a1")})
    module = own.layout.modules[0]
    a, b = f"lora_a/{module}", f"lora_b/{module}"
    mixed = blend(own, other, 0.25)
    scale = 16 / 3

    def product(cohort):
        adapter = cohort.take("a1")
        return delta(adapter[a].double(), adapter[b].double(), scale)

    u, s, vh = torch.linalg.svd(0.75 * product(own) + 0.25 * product(other))
    assert torch.allclose(product(mixed), (u[:, :3] * s[:3]) @ vh[:3], atol=1e-6)
    assert torch.equal(mixed.take("b1")[a], own.take("b1")[a]) or torch.allclose(
        mixed.take("b1")[a], own.take("b1")[a], atol=1e-5
    )


def test_broken_logits_are_never_fit():
    assert fitness(np.array([0.1, math.nan])) < fitness(np.array([50.0, 50.0]))
    assert fitness(np.array([math.inf, 1.0])) < fitness(np.array([1e6, 1e6]))


def test_a_client_whose_training_blew_up_takes_the_mixture():
    _, group, _ = trained(1)
    good = group.arms["held"].take("a1")
    group.arms["held"] = group.arms["held"].put(
        {"a1": {k: torch.full_like(v, float("nan")) for k, v in good.items()}}
    )
    choose_best(group, {"a1": [good]})
    assert all(torch.isfinite(v).all() for v in group.arms["held"].take("a1").values())
