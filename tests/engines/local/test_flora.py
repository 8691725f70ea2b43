"""Stacked mixtures are merged into a dense change that each client keeps to itself."""

import copy
from dataclasses import replace

import pytest
import torch

from atlas.build.federation import assemble
from atlas.engines.local.deliver import validate, whole_adapter
from atlas.errors import InputError
from atlas.federation.adapters.adapter import adapter_sha256
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.batching.forward import run, stack_cohorts
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Failure
from atlas.federation.mixing.deliver import pack_mixtures, unpack_mixtures
from atlas.federation.rounds import run_round
from atlas.federation.training.evaluate import Limits, generate_answers, score_labels
from tests.engines.local import test_causal as causal
from tests.federation.mixing.test_unequal_ranks import UNEQUAL, change
from tests.federation.test_rounds import hashes, play
from tests.helpers import make_clients, make_config, reloaded

DOUBLE = {"dtype": "float64"}


def flora(**changes):
    return make_config(strategy="flora", **{"backbone": DOUBLE, "adapter": UNEQUAL, **changes})


def held_cohort(federation):
    return federation.engine.groups[0].arms["held"]


def mixtures(spy, number):
    """The dense data-weighted mean of what clients sent in a round, by module."""
    sent = [m for m in spy.log if m[0] == "fit"][number][2]
    found = {c: decode(reply) for c, reply in sent.items()}
    total = sum(reply.facts["examples"] for reply in found.values())
    names = [k.removeprefix("lora_a/") for k in found["a1"].tensors if k.startswith("lora_a/")]
    return {
        module: sum(
            reply.facts["examples"] / total * change(reply.tensors, module)
            for reply in found.values()
        )
        for module in names
    }


def logits_of(model, cohort, store, client):
    stack = stack_cohorts([cohort.select([client])])
    # The store knows projections of the model it was made for, not of one with other weights.
    batch = replace(store.batch([store.rows(f"{client}/validation")]), projected=())
    with torch.no_grad():
        return run(model, stack, batch).logits


def written_copy(model, changes):
    """The model on a copy of its backbone with changes added to the weights themselves."""
    backbone = copy.deepcopy(model.backbone)
    linears = [backbone.linears(block) for block in range(backbone.depth)]
    for module, change_of in changes.items():
        linear = next(found[module] for found in linears if module in found)
        linear.weight.data += change_of
    return replace(model, backbone=backbone)


def test_after_a_round_clients_are_the_backbone_plus_the_dense_mixture():
    federation, spy, events = play(flora(rounds=1))
    group, cohort = federation.engine.groups[0], held_cohort(federation)
    before = group.model.backbone.fingerprint()
    wanted = mixtures(spy, 0)
    other = written_copy(group.model, wanted)
    start = initial_cohort(cohort.layout, cohort.members, 0, dtype=torch.float64)
    for client in cohort.clients:
        for module, delta in cohort.deltas[client].items():
            assert torch.allclose(delta, wanted[module], atol=1e-12)
        ours = logits_of(group.model, cohort, group.store, client)
        theirs = logits_of(other, cohort_without_deltas(cohort), group.store, client)
        assert torch.allclose(ours, theirs, atol=1e-10, rtol=0)
        plain = logits_of(group.model, cohort_without_deltas(cohort), group.store, client)
        assert not torch.allclose(ours, plain, atol=1e-3)
        # The adapter has begun again, the head has not.
        adapter, fresh = cohort.take(client), start.take(client)
        assert all(torch.equal(adapter[k], fresh[k]) for k in adapter if k.startswith("lora_"))
        assert not torch.equal(adapter["head/classifier.weight"], fresh["head/classifier.weight"])
    assert group.model.backbone.fingerprint() == before
    assert [f["error"]["worst"] < 1e-14 for e, f in events if e == "mixed"] == [True]


def cohort_without_deltas(cohort):
    return replace(cohort, deltas={})


def test_changes_add_up_over_rounds_and_the_backbone_is_never_written():
    federation = assemble(flora(), make_clients())
    before = federation.models["a1"].backbone.fingerprint()
    federation, spy, _ = play(flora(rounds=2))
    first, second = mixtures(spy, 0), mixtures(spy, 1)
    for deltas in held_cohort(federation).deltas.values():
        for module, found in deltas.items():
            assert torch.allclose(found, first[module] + second[module], atol=1e-12)
            assert not torch.allclose(found, first[module], atol=1e-4)
    assert federation.models["a1"].backbone.fingerprint() == before


def test_everybody_is_sent_all_ranks_and_nobody_a_dense_change():
    federation, spy, _ = play(flora())
    total = {m: sum(member.ranks[i] for member in held_cohort(federation).members)
             for i, m in enumerate(federation.models["a1"].layout.modules)}  # fmt: skip
    for task, payloads, replies in spy.log:
        for client, payload in payloads.items():
            names = {k.split("|")[-1] for k in decode(payload).tensors}
            assert all(name.startswith(("lora_", "head/")) for name in names)
            assert all(k.startswith(("lora_", "head/")) for k in decode(replies[client]).tensors)
            if task == "deliver":
                (mixture,) = unpack_mixtures(decode(payload))
                for module, rank in total.items():
                    assert mixture[f"lora_a/{module}"].shape[0] == rank
                    assert mixture[f"lora_b/{module}"].shape[1] == rank
    plain, _, _ = play(make_config(backbone=DOUBLE, adapter=UNEQUAL))
    assert federation.state.ledger.total("down") > 2 * plain.state.ledger.total("down")
    assert federation.state.ledger.total("up") == pytest.approx(
        plain.state.ledger.total("up"), rel=0.02
    )


def test_switching_flora_off_changes_the_outcome_and_not_the_shadow():
    merged, _, _ = play(flora())
    plain, _, _ = play(make_config(backbone=DOUBLE, adapter=UNEQUAL))
    group, other = merged.engine.groups[0], plain.engine.groups[0]
    clients = sorted(group.holders)
    (found,), (averaged,) = (validate(g, [g.arms["held"]], clients) for g in (group, other))
    assert all(found[c]["loss"] != pytest.approx(averaged[c]["loss"], rel=1e-4) for c in clients)
    assert hashes(merged, "shadow") == hashes(plain, "shadow")
    assert not group.arms["shadow"].deltas


def test_validation_and_test_scores_count_the_dense_change():
    federation, _, events = play(flora())
    group, cohort = federation.engine.groups[0], held_cohort(federation)
    told = {f["client"]: f["members"] for e, f in events if e == "validated" and f["round"] == 2}
    arms = [cohort, cohort_without_deltas(cohort)]
    dense, bare = validate(group, arms, sorted(group.holders))
    request = encode({}, {"split": "test", "arm": "final"})
    replies = federation.engine.ask("evaluate", dict.fromkeys(group.holders, request))
    for client in group.holders:
        assert told[client][client]["loss"] == pytest.approx(dense[client]["loss"], rel=1e-12)
        assert dense[client]["loss"] != pytest.approx(bare[client]["loss"], rel=1e-3)
        store, task = group.test_store, group.holders[client].data.task
        stack = stack_cohorts([cohort.select([client])])
        (wanted,) = score_labels(store, stack, [store.rows(client)], [task])
        scores = decode(replies[client]).facts["members"][client]
        assert scores["loss"] == pytest.approx(wanted["loss"], rel=1e-10)


def test_the_adapter_handed_over_is_all_that_was_added():
    federation, _, _ = play(flora())
    cohort = held_cohort(federation)
    request = encode({}, {"arm": "final"})
    replies = federation.engine.ask("adapter", dict.fromkeys(federation.holders, request))
    for client in cohort.clients:
        adapter = decode(replies[client]).tensors
        assert adapter_sha256(adapter) != adapter_sha256(cohort.take(client))
        for module, delta in cohort.deltas[client].items():
            wanted = delta + change(cohort.take(client), module)
            assert torch.allclose(change(adapter, module), wanted, atol=1e-12, rtol=0)
            rank = int(torch.linalg.matrix_rank(wanted))
            assert adapter[f"lora_a/{module}"].shape[0] == rank
    shadow = federation.engine.groups[0].arms["shadow"]
    assert adapter_sha256(whole_adapter(None, shadow, "a1")) == adapter_sha256(shadow.take("a1"))


@pytest.mark.parametrize("changes", [{}, {"alone": False}, {"train": {"keep_moments": True}}])
def test_saved_clients_go_on_to_the_same_bits(changes):
    config = flora(backbone={"name": "tiny"}, rounds=3, **changes)
    straight, _, _ = play(config)
    first, _, _ = play(config, rounds=1)
    second = reloaded(first, config)
    for _ in range(2):
        run_round(second.plan, second.state, second.engine, lambda *_: None)
    assert hashes(straight) == hashes(second)
    for client, deltas in held_cohort(straight).deltas.items():
        for module, value in deltas.items():
            assert torch.equal(value, held_cohort(second).deltas[client][module])


def test_a_saved_change_of_another_shape_is_refused():
    federation, _, _ = play(flora(rounds=1))
    blob = federation.engine.ask("save", {"a1": encode({}, {})})["a1"]
    message = decode(blob)
    name = next(key for key in message.tensors if key.startswith("delta|"))
    cut = encode({**message.tensors, name: message.tensors[name][:1]}, message.facts)
    reply = federation.engine.ask("load", {"a1": cut})["a1"]
    assert isinstance(reply, Failure) and "dense change of a1" in reply.reason


def test_a_failure_merges_nothing_twice():
    federation, spy, _ = play(flora(rounds=1))
    group = federation.engine.groups[0]
    before = {c: dict(deltas) for c, deltas in held_cohort(federation).deltas.items()}
    payloads = dict([m for m in spy.log if m[0] == "deliver"][0][1])
    (mixture,) = unpack_mixtures(decode(payloads["a2"]))
    mixture.pop(sorted(mixture)[-1])
    payloads["a2"] = pack_mixtures([mixture], {"round": 2})
    replies = federation.engine.ask("deliver", payloads)
    assert [c for c, reply in replies.items() if isinstance(reply, Failure)] == ["a2"]
    after = group.arms["held"].deltas
    for client, deltas in before.items():
        for module, value in deltas.items():
            times = 1 if client == "a2" else 2
            assert torch.allclose(after[client][module], times * value, atol=1e-12)


def test_whoever_is_alone_in_a_round_starts_again_with_the_others():
    """Otherwise its next reply would hold what the others have merged already."""

    def lose(task, client, reply):
        return Failure("down") if task == "fit" and client != "a1" else reply

    federation, _, events = play(flora(rounds=2, alone=False), lose)
    cohort = held_cohort(federation)
    start = initial_cohort(cohort.layout, cohort.members, 0, dtype=torch.float64)
    for client in cohort.clients:
        for module, value in cohort.deltas[client].items():
            assert torch.allclose(value, cohort.deltas["a1"][module], atol=1e-12)
        fresh = start.take(client)
        assert all(torch.equal(v, fresh[k]) for k, v in cohort.take(client).items()
                   if k.startswith("lora_"))  # fmt: skip
        known = federation.state.cohorts["tiny"].take(client)
        assert all(torch.equal(known[k], fresh[k]) for k in known if k.startswith("lora_"))


@pytest.mark.parametrize("absent", ["restrict", "last"])
def test_absent_clients_receive_and_count_once(absent):
    config = flora(sample=0.5, alone=False, rounds=3, absent=absent)
    federation, spy, events = play(config)
    assert not federation.state.failures
    deltas = held_cohort(federation).deltas
    shares = [f["weights"][0] for e, f in events if e == "mixed"]
    wanted = dict.fromkeys(deltas["a1"], 0.0)
    for (_, _, replies), row in zip([m for m in spy.log if m[0] == "fit"], shares, strict=True):
        for k, client in enumerate(held_cohort(federation).clients):
            if client in replies:
                tensors = decode(replies[client]).tensors
                wanted = {m: v + row[k] * change(tensors, m) for m, v in wanted.items()}
    for found in deltas.values():
        assert all(torch.allclose(found[m], wanted[m], atol=1e-12) for m in wanted)


def test_clients_one_by_one_are_the_slow_twin_of_the_stack():
    fast, _, _ = play(flora())
    slow, _, _ = play(flora(train={"stacked": False}))
    for client, deltas in held_cohort(fast).deltas.items():
        for module, value in deltas.items():
            other = held_cohort(slow).deltas[client][module]
            assert torch.allclose(value, other, atol=1e-10, rtol=0)


def test_generated_answers_see_the_dense_change():
    clients = [
        causal.client(name, causal.ECHO, causal.free, i) for i, name in ((1, "e1"), (4, "e2"))
    ]
    federation = assemble(causal.causal_config(strategy="flora", rounds=2), clients)
    for _ in range(2):
        run_round(federation.plan, federation.state, federation.engine, lambda *_: None)
    cohort, model = held_cohort(federation), federation.models["e1"]
    loud = {m: 40 * delta for m, delta in cohort.deltas["e1"].items()}
    found = []
    for deltas in ({}, {"e1": loud}):
        stack = stack_cohorts([replace(cohort, deltas=deltas).select(["e1"])])
        found.append(generate_answers(model, stack, ["Q: ab A:"], Limits(32, 4)))
    assert found[0] != found[1]


def test_keep_best_is_refused():
    with pytest.raises(InputError, match="keep_best: true, but under flora mixtures are merged"):
        assemble(flora(keep_best=True), make_clients())
