"""Local training that is pulled to an anchor: fedprox and ditto, and each of them switched off."""

import pytest
import torch

from atlas.build.federation import assemble
from atlas.engines.local import fit as training
from atlas.engines.local.deliver import final_cohort, validate
from atlas.errors import InputError
from atlas.federation.adapters.adapter import adapter_sha256
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Failure
from atlas.federation.rounds import run_round
from atlas.federation.training.loop import Clock, Course, fit
from atlas.federation.training.step import Anchor
from atlas.ops.lowrank.factors import delta
from atlas.ops.optim import BETA1
from tests.helpers import make_clients, make_config, reloaded

LONG = {"epochs": 8, "lr": 0.005}


def rounds_of(rounds=2, **changes):
    federation = assemble(make_config(**changes), make_clients())
    events = []
    for _ in range(rounds):
        run_round(
            federation.plan,
            federation.state,
            federation.engine,
            lambda event, fields: events.append((event, dict(fields))),
        )
    assert not federation.state.failures
    return federation, events


def play(rounds=2, **changes):
    federation, events = rounds_of(rounds, **changes)
    return federation.engine.groups[0], events


def fit_once(federation, number=1):
    requests = {client: encode({}, {"round": number}) for client in federation.holders}
    return federation.engine.ask("fit", requests)


def hashes(cohort):
    return {client: adapter_sha256(cohort.take(client)) for client in cohort.clients}


def distances(one, two):
    stack = stack_cohorts([one])
    everybody = torch.arange(len(one.members))
    anchor = Anchor(two.tensors, torch.ones(len(one.members)))
    return anchor.cost(stack, everybody, one.layout)


def test_fedprox_without_strength_is_fedavg_bit_for_bit():
    plain, plain_events = play(strategy="fedavg")
    off, off_events = play(strategy="fedprox", train={"anchor": 0.0})
    on, _ = play(strategy="fedprox")
    assert hashes(off.arms["held"]) == hashes(plain.arms["held"])
    assert not set(hashes(on.arms["held"]).values()) & set(hashes(plain.arms["held"]).values())
    losses = [
        [fields["loss"] for event, fields in events if event == "fitted"]
        for events in (plain_events, off_events)
    ]
    assert losses[0] == losses[1]


def test_fedprox_leaves_the_shadow_alone():
    plain, _ = play(strategy="fedavg")
    strong, _ = play(strategy="fedprox", train={"anchor": 10.0})
    assert hashes(strong.arms["shadow"]) == hashes(plain.arms["shadow"])


def test_a_stronger_pull_ends_nearer_to_the_start():
    found = []
    for strength in (0.0, 0.1, 1.0, 10.0):
        settings = make_config(strategy="fedprox", train={**LONG, "anchor": strength})
        federation = assemble(settings, make_clients())
        group = federation.engine.groups[0]
        start = group.arms["held"]
        fit_once(federation)
        found.append(distances(group.arms["held"], start))
    for weaker, stronger in zip(found, found[1:], strict=False):
        assert (stronger < weaker).all()
    assert (found[-1] > 0).all(), "a pulled client still learns"


def test_a_step_adds_strength_times_the_gradient_of_the_dense_distance():
    federation = assemble(
        make_config(
            backbone={"dtype": "float64"}, train={"epochs": None, "steps": 1, "clip": None}
        ),
        make_clients(),
    )
    group = federation.engine.groups[0]
    fit_once(federation)
    stack = stack_cohorts([group.arms["held"]])
    far = {name: value * 0.5 for name, value in stack.tensors.items()}
    strength = torch.tensor([0.3, 0.0, 2.0, 0.0, 1.0], dtype=torch.float64)
    lessons = [group.lesson(client) for client in group.holders]
    plain, pulled = (
        fit(
            group.store,
            Course(stack, lessons, anchor=anchor),
            federation.config.train,
            Clock(0, 1, 2),
        )
        for anchor in (None, Anchor(far, strength))
    )
    assert torch.equal(plain.losses, pulled.losses), "losses are the data's alone"
    moving = {name: value.clone().requires_grad_() for name, value in stack.tensors.items()}
    cost = sum(
        strength @ (moving[name] - far[name]).square().flatten(1).sum(1)
        for name in moving
        if name.startswith("head/")
    )
    for i, module in enumerate(group.model.layout.modules):
        a, b = f"lora_a/{module}", f"lora_b/{module}"
        gap = delta(moving[a], moving[b], stack.scales[i]) - delta(far[a], far[b], stack.scales[i])
        cost = cost + strength @ gap.square().flatten(1).sum(1)
    wanted = torch.autograd.grad(cost / 2, list(moving.values()))
    for name, value in zip(moving, wanted, strict=True):
        # After one step from fresh moments the first moment is (1 - beta1) times the gradient.
        added = (pulled.moments[name][0] - plain.moments[name][0]) / (1 - BETA1)
        assert torch.allclose(added, value, rtol=1e-8, atol=1e-10), name
    for row in (1, 3):
        assert all(
            torch.equal(pulled.stack.tensors[name][row], plain.stack.tensors[name][row])
            for name in moving
        )


def test_ditto_uses_a_personal_adapter_unlike_the_mean_and_unlike_alone():
    group, _ = play(strategy="ditto")
    plain, _ = play(strategy="fedavg")
    final = hashes(final_cohort(group, "final", sorted(group.holders)))
    assert final == hashes(group.arms["personal"])
    assert not set(final.values()) & set(
        hashes(final_cohort(plain, "final", sorted(plain.holders))).values()
    )
    assert not set(final.values()) & set(
        hashes(final_cohort(group, "alone", sorted(group.holders))).values()
    )
    assert hashes(final_cohort(group, "alone", sorted(group.holders))) == hashes(
        group.arms["shadow"]
    )


def test_ditto_without_strength_is_training_alone():
    group, _ = play(1, strategy="ditto", train={"anchor": 0.0})
    assert hashes(group.arms["personal"]) == hashes(group.arms["shadow"])
    assert hashes(group.arms["personal"]) != hashes(group.arms["held"])
    # Over more rounds the matrix library may round the last rows of a pass in its own way.
    longer, _ = play(4, strategy="ditto", train={"anchor": 0.0})
    for name, value in longer.arms["shadow"].tensors.items():
        assert torch.allclose(longer.arms["personal"].tensors[name], value, atol=1e-5), name


def test_ditto_with_a_huge_pull_stays_near_what_was_delivered():
    ends = {}
    for strength in (0.0, 1e4):
        federation = assemble(
            make_config(strategy="ditto", train={**LONG, "anchor": strength}), make_clients()
        )
        group = federation.engine.groups[0]
        for _ in range(2):
            delivered = group.arms["held"]
            run_round(federation.plan, federation.state, federation.engine, lambda *_: None)
        ends[strength] = distances(group.arms["personal"], delivered)
    assert (ends[1e4] < 0.05 * ends[0.0]).all()


def test_ditto_averages_what_fedavg_averages():
    changes = {"backbone": {"dtype": "float64"}}
    group, _ = play(strategy="ditto", train={"anchor": 5.0}, **changes)
    plain, _ = play(strategy="fedavg", **changes)
    for name, value in plain.arms["held"].tensors.items():
        assert torch.allclose(group.arms["held"].tensors[name], value, atol=1e-10, rtol=0), name


@pytest.mark.parametrize(("strategy", "arm"), [("fedprox", "held"), ("ditto", "personal")])
def test_the_anchor_is_what_was_held_at_the_start_of_the_round(strategy, arm, monkeypatch):
    seen = []

    def watch(store, course, *rest):
        seen.append(course.anchor)
        return train(store, course, *rest)

    train = training.fit_on_cores
    monkeypatch.setattr(training, "fit_on_cores", watch)
    federation = assemble(make_config(strategy=strategy), make_clients())
    group = federation.engine.groups[0]
    arms = [name for name in training.TRAINED_ARMS if name in group.arms]
    for _ in range(2):
        held = group.arms["held"]
        run_round(federation.plan, federation.state, federation.engine, lambda *_: None)
        strength = seen[-1].strength.reshape(len(arms), -1)
        for i, name in enumerate(arms):
            assert strength[i].tolist() == [0.1 if name == arm else 0.0] * 5
        row = 5 * arms.index(arm)
        for name, value in held.tensors.items():
            assert torch.equal(seen[-1].tensors[name][row : row + 5], value)


def test_only_what_is_held_is_sent():
    federation = assemble(make_config(strategy="ditto"), make_clients())
    replies = fit_once(federation)
    group = federation.engine.groups[0]
    sent = {client: adapter_sha256(decode(reply).tensors) for client, reply in replies.items()}
    assert sent == hashes(group.arms["held"])
    assert not set(sent.values()) & set(hashes(group.arms["personal"]).values())


def test_validation_and_exports_look_at_the_personal_adapter():
    federation, events = rounds_of(strategy="ditto")
    group = federation.engine.groups[0]
    clients = sorted(group.holders)
    own, shared = validate(group, [group.arms[arm] for arm in ("personal", "held")], clients)
    told = {f["client"]: f["members"] for e, f in events if e == "validated" and f["round"] == 2}
    for client in clients:
        assert told[client][client] == pytest.approx(own[client])
        assert told[client][client]["loss"] != pytest.approx(shared[client]["loss"])
    request = encode({}, {"arm": "final"})
    replies = federation.engine.ask("adapter", dict.fromkeys(clients, request))
    found = {client: adapter_sha256(decode(reply).tensors) for client, reply in replies.items()}
    assert found == hashes(group.arms["personal"])


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "ditto"},
        {"strategy": "ditto", "train": {"keep_moments": True}},
        {"strategy": "ditto", "alone": False},
        {"strategy": "fedprox"},
    ],
)
def test_saved_clients_go_on_to_the_same_bits(changes):
    config = make_config(**changes)
    straight, _ = play(3, **changes)
    first = assemble(config, make_clients())
    run_round(first.plan, first.state, first.engine, lambda *_: None)
    second = reloaded(first, config)
    for _ in range(2):
        run_round(second.plan, second.state, second.engine, lambda *_: None)
    for arm, cohort in straight.arms.items():
        assert hashes(cohort) == hashes(second.engine.groups[0].arms[arm]), arm


@pytest.mark.parametrize("strategy", ["fedprox", "ditto"])
def test_clients_one_by_one_are_the_slow_twin_of_the_stack(strategy):
    changes = {"strategy": strategy, "backbone": {"dtype": "float64"},
               "adapter": {"ranks": {"a1": 2, "b1": [1, 2, 3, 4]}}}  # fmt: skip
    fast, _ = play(**changes)
    slow, _ = play(**changes, train={"stacked": False})
    for arm, cohort in fast.arms.items():
        for name, value in cohort.tensors.items():
            assert torch.allclose(value, slow.arms[arm].tensors[name], atol=1e-10, rtol=0), arm


def test_a_failed_fit_leaves_all_arms_as_they_were(monkeypatch):
    train = training.fit_on_cores

    def broken(store, course, *rest):
        fitted = train(store, course, *rest)
        if any(lesson.client == "b1" for lesson in course.lessons):
            raise RuntimeError("out of memory")
        return fitted

    monkeypatch.setattr(training, "fit_on_cores", broken)
    federation = assemble(make_config(strategy="ditto"), make_clients())
    group = federation.engine.groups[0]
    before = {arm: hashes(cohort) for arm, cohort in group.arms.items()}
    assert set(before) == {"held", "shadow", "personal"}
    replies = fit_once(federation)
    assert [client for client, reply in replies.items() if isinstance(reply, Failure)] == ["b1"]
    for arm, cohort in group.arms.items():
        moved = {c for c, found in hashes(cohort).items() if found != before[arm][c]}
        assert moved == {"a1", "a2", "b2", "c1"}, arm


def test_a_personal_adapter_that_blows_up_is_not_written(monkeypatch):
    train = training.fit_on_cores

    def explode(*arguments):
        fitted = train(*arguments)
        for value in fitted.stack.tensors.values():
            value[10] = float("nan")  # a1 of the third arm
        return fitted

    monkeypatch.setattr(training, "fit_on_cores", explode)
    federation = assemble(make_config(strategy="ditto"), make_clients())
    group = federation.engine.groups[0]
    start = hashes(group.arms["personal"])
    assert not any(isinstance(reply, Failure) for reply in fit_once(federation).values())
    kept = {c for c, found in hashes(group.arms["personal"]).items() if found == start[c]}
    assert kept == {"a1"}
    assert hashes(group.arms["held"])["a1"] != start["a1"]


def test_keep_best_goes_with_fedprox_and_not_with_ditto():
    group, _ = play(1, strategy="fedprox", keep_best=True)
    assert group.keeps_best and set(group.arms) == {"held", "shadow"}
    with pytest.raises(InputError, match="keep_best: true, but under ditto"):
        assemble(make_config(strategy="ditto", keep_best=True), make_clients())
