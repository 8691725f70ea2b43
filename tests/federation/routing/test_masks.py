"""Routing in rounds: shut modules train and stay at home, for plain adapters and for cores."""

import pytest
import scipy
import torch

from atlas.config.plan import RouteSettings
from atlas.errors import InputError
from atlas.federation.exchange.message import decode, encode
from atlas.federation.mixing.apply import mix_cohort
from atlas.federation.mixing.deliver import unpack_mixtures
from atlas.federation.routing.masks import Routes, RouteState
from atlas.jobs.runner import resume_run, start_run
from atlas.ops.graph.sparse_rows import share_rows
from tests.federation.mixing.test_cores import make_cohort, make_weights
from tests.federation.test_rounds import body, held, play
from tests.helpers import make_clients, make_config, stop_after

DATA = {"train": 16, "validation": 8, "test": 12, "clients_per_task": 2, "tasks": ["sentiment"]}


def routed(**changes):
    return make_config(**{"route": {"budget": 0.5}, "rounds": 3, **changes})


@pytest.mark.parametrize("n", [2, 30, 70])
def test_every_module_has_a_w_of_its_own(n):
    """Against a double loop: shut rows stay, columns of those who never sent are left out."""
    cohort, weights = make_cohort(n), make_weights(n, seed=1)
    draw = torch.Generator().manual_seed(n)
    routes = Routes(*(torch.rand(2, n, 3, generator=draw) < 0.6))
    dense = mix_cohort(cohort, weights, space="core", heads="personal", routes=routes)
    rows = share_rows(scipy.sparse.csr_array(weights.numpy()))
    sparse = mix_cohort(cohort, rows, space="core", heads="personal", routes=routes)
    for i in range(3):
        for name in cohort.layout.parts(i):
            value = cohort.tensors[name]
            for k in range(n):
                shares = weights[k] * routes.known[:, i]
                wanted = value[k]
                if routes.open[k, i] and float(shares.sum()):
                    wanted = sum(shares[j] * value[j] for j in range(n)) / shares.sum()
                assert torch.allclose(dense.tensors[name][k], wanted, atol=1e-10)
                assert torch.allclose(sparse.tensors[name][k], wanted, atol=1e-10)


def test_shut_modules_are_neither_sent_nor_received_but_train():
    federation, spy, events = play(routed(), rounds=1)
    opened = next(fields["open"] for event, fields in events if event == "routed")
    modules = federation.state.cohorts["tiny"].layout.modules
    replies = next(replies for task, _, replies in spy.log if task == "fit")
    offers = next(payloads for task, payloads, _ in spy.log if task == "deliver")
    for client, mask in opened.items():
        assert sum(mask) == 2
        wanted = {m for m, is_open in zip(modules, mask, strict=True) if is_open}
        sent = {name.split("/", 1)[1] for name in body(decode(replies[client]).tensors)}
        assert sent == wanted
        for mixture in unpack_mixtures(decode(offers[client])):
            assert {name.split("/", 1)[1] for name in body(mixture)} <= wanted
        shut = next(m for m, is_open in zip(modules, mask, strict=True) if not is_open)
        assert held(federation)[client][f"lora_b/{shut}"].any(), "it trained all the same"
    assert not [fields for event, fields in events if event in ("failure", "refused")]


def test_fewer_bytes_travel_and_the_outcome_differs():
    whole, _, _ = play(make_config(rounds=3), rounds=3)
    part, _, _ = play(routed(), rounds=3)
    for way in ("up", "down"):
        assert part.state.ledger.total(way) < 0.75 * whole.state.ledger.total(way)
    one, two = held(whole)["a1"], held(part)["a1"]
    assert any(not torch.equal(one[name], two[name]) for name in one)


def test_all_open_is_as_if_there_were_no_routing():
    whole, _, _ = play(make_config(), rounds=2)
    part, _, _ = play(routed(route={"budget": 1.0}), rounds=2)
    for client, adapter in held(whole).items():
        assert all(torch.equal(v, held(part)[client][name]) for name, v in adapter.items())


def test_salience_is_the_sum_over_steps_of_what_autograd_says():
    """One step: |grad|^2, and |weight x grad|, of the loss as it stands at the start."""
    settings = {"train": {"epochs": None, "steps": 1, "batch": 64, "clip": None}}
    for measure in ("gradient", "product"):
        route = {"budget": 0.5, "measure": measure}
        federation, spy, _ = play(routed(route=route, **settings), rounds=2)
        reply = [replies for task, _, replies in spy.log if task == "fit"][-1]["a1"]
        found = decode(reply).facts["salience"]
        # The same step, from the state that a1 was in before it.
        again, _, _ = play(routed(route=route, **settings), rounds=1)
        group = next(g for g in again.engine.groups if "a1" in g.holders)
        from atlas.federation.batching.forward import run, stack_cohorts

        stack = stack_cohorts([group.arms["held"].select(["a1"])])
        leaves = {name: value.detach().requires_grad_() for name, value in stack.tensors.items()}
        moving = type(stack)(leaves, stack.scales, stack.labels)
        lesson = group.lesson("a1")
        loss = run(group.model, moving, group.store.batch([lesson.train])).client_losses().sum()
        grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        for i, module in enumerate(group.model.layout.modules):
            both = [f"lora_a/{module}", f"lora_b/{module}"]
            if measure == "gradient":
                wanted = sum(float(grads[name].square().sum()) for name in both)
            else:
                wanted = sum(float((grads[n] * leaves[n]).detach().abs().sum()) for n in both)
            assert found[i] == pytest.approx(wanted, rel=1e-4)


def test_cores_are_ready_only_where_something_came():
    changes = {"strategy": "mosaic", "adapter": {"rank": 3}, "train": {"lr": 0.05}}
    federation, _, events = play(routed(**changes), rounds=2)
    assert not [fields for event, fields in events if event in ("failure", "refused")]
    seen = [fields["open"] for event, fields in events if event == "routed"]
    for group in federation.engine.groups:
        slot = group.arms["held"].slot
        for client in group.holders:
            opened = {
                module
                for masks in seen
                for module, is_open in zip(slot.cohort.layout.modules, masks[client], strict=True)
                if is_open
            }
            assert slot.ready[client] <= opened
            fresh = slot.cohort.take(client)
            for i, module in enumerate(slot.cohort.layout.modules):
                came = bool(fresh[slot.cohort.layout.parts(i)[0]].any())
                assert came == (module in slot.ready[client])


def test_a_client_that_lies_about_salience_is_told_and_stops_nobody():
    def tamper(task, client, reply):
        if task != "fit" or client != "a1":
            return reply
        message = decode(reply)
        return encode(message.tensors, {**message.facts, "salience": [1.0, "much", 2.0, 3.0]})

    federation, _, events = play(routed(), tamper=tamper, rounds=2)
    refused = [fields for event, fields in events if event == "refused"]
    assert {entry["client"] for entry in refused} == {"a1"}
    assert "salience" in refused[0]["reason"]
    assert "a1" not in federation.state.routes.salience
    assert len(federation.state.routes.salience) == len(make_clients()) - 1


@pytest.mark.parametrize("strategy", ["fedavg", "mosaic"])
def test_masks_are_saved_and_the_bits_are_the_same(tmp_path, strategy):
    config = routed(strategy=strategy, data=DATA, rounds=4)
    whole = start_run(config, tmp_path / "whole")
    stopped = start_run(config, tmp_path / "part", stop_after(2))
    resumed = resume_run(stopped.folder.path)
    assert resumed.summary["adapters_sha256"] == whole.summary["adapters_sha256"]
    assert resumed.summary["bytes"] == whole.summary["bytes"]


def test_random_masks_have_the_same_bytes():
    cohort = make_cohort(6)
    by_chance = RouteSettings(budget=0.4, choice="random")
    state = RouteState()
    masks = [state.choose(cohort, by_chance, 0.4, 0, number) for number in range(1, 9)]
    assert all(sum(mask) == 1 for one in masks for mask in one.values())
    assert len({tuple(mask) for one in masks for mask in one.values()}) == 3


def test_routing_is_refused_where_adapters_are_merged():
    with pytest.raises(InputError, match=r"route\.budget"):
        play(routed(strategy="flora"))
