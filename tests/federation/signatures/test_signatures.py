"""Signatures against plain autograd and a direct CKA, and what the server makes of them."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from atlas.build.federation import assemble
from atlas.build.relevance import find_probe
from atlas.config.plan import RelevanceSettings
from atlas.data.anchors import anchor_texts
from atlas.errors import InputError
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.clients import Example
from atlas.federation.exchange.message import decode, encode
from atlas.federation.rounds import run_round, run_rounds
from atlas.federation.signatures.gather import known_signatures, remember
from atlas.federation.signatures.gradient import probe_gradient
from atlas.federation.signatures.representation import pooled_features
from atlas.federation.signatures.signature import finish_gradient
from atlas.federation.signatures.stores import ANCHORS, PROBED, as_prompts
from atlas.ops.sketch import count_sketch
from atlas.runs.events import ignore
from atlas.runs.seeds import generator
from tests.engines.contract import make_people
from tests.federation.fingerprints.test_take import make_echo
from tests.helpers import make_client, make_clients, make_config, make_task

EXACT = {"backbone": {"name": "tiny", "dtype": "float64"}}


def direct_gradient(config, client):
    """One example at a time, by autograd on the weight itself."""
    backbone = copy.deepcopy(find_probe(config, "tiny-causal").backbone)
    (name,) = backbone.select(backbone.depth - 1, ["down"])
    weight = backbone.linears(backbone.depth - 1)[name].weight.requires_grad_()
    total = torch.zeros_like(weight)
    examples = as_prompts(client.task, client.train)
    for example in examples:
        inputs = backbone.tokenize(PROBED, [example], config.backbone.max_length)
        hidden = backbone.embed(inputs)
        context = backbone.context(hidden, inputs.mask)
        for block in range(backbone.depth):
            hidden = backbone.block(block, hidden, context)
        logits = backbone.vocabulary_logits(hidden)
        loss = cross_entropy(logits[0], inputs.targets[0], ignore_index=-100)
        (own,) = torch.autograd.grad(loss, weight)
        total += own / len(examples)
    return total.flatten()


@pytest.mark.parametrize(
    "client",
    [make_client("a", train=70), make_client("c", make_task("size", ("s", "m", "l"))), make_echo()],
    ids=["two labels, two passes", "three labels", "answers"],
)
def test_the_probes_gradient_is_that_of_its_real_weight(client):
    causal = client.task.kind == "causal"
    name = "tiny-causal" if causal else "tiny"
    config = make_config(backbone={"name": name, "dtype": "float64"}, strategy="simgrad")
    (group,) = assemble(config, [client]).engine.groups
    store = group.signing.probed("tiny-causal", group.holders, 32)
    found = probe_gradient(store, store.rows(client.id))
    wanted = direct_gradient(config, client)
    assert float(wanted.norm()) > 1e-3
    assert torch.allclose(found, wanted, atol=1e-6, rtol=0)  # its norms are float32
    assert group.signing.probed("tiny-causal", group.holders, 32) is store


def test_labels_are_told_by_name_and_prompts_are_left():
    task = make_task("t", ("no", "yes"))
    (told,) = as_prompts(task, [Example(("one", "two"), 1)])
    assert (told.texts, told.label, told.answer) == (("one\ntwo\n",), -1, "yes")
    echo = make_echo()
    assert as_prompts(echo.task, echo.train) == list(echo.train)


def test_a_gradient_is_sketched_clipped_and_noised_by_address():
    gradient = torch.from_numpy(np.random.default_rng(0).standard_normal(500))
    common = int(generator(3, "signature", "sketch").integers(2**63))
    sketched = count_sketch(gradient, 40, common)
    settings = RelevanceSettings(sketch=40, clip=0.5, noise=0.0)
    plain, length = finish_gradient(gradient, settings, 3, 1, "a")
    assert length == pytest.approx(float(sketched.norm()))
    assert torch.allclose(plain.double(), sketched * 0.5 / sketched.norm(), atol=1e-7)
    loud = settings.model_copy(update={"noise": 0.1})
    noised, _ = finish_gradient(gradient, loud, 3, 2, "b")
    drawn = torch.from_numpy(generator(3, "signature", 2, "b").standard_normal(40))
    assert torch.allclose(noised.double() - plain.double(), 0.05 * drawn, atol=1e-6)
    others = [finish_gradient(gradient, loud, 3, *who)[0] for who in ((2, "c"), (1, "b"))]
    assert not any(torch.equal(noised, other) for other in others)


def test_representations_are_means_over_tokens_of_the_adapted_model():
    federation = assemble(make_config(**EXACT, strategy="repsim", rounds=1), make_clients())
    run_round(federation.plan, federation.state, federation.engine, ignore)
    (group,) = federation.engine.groups
    store = group.signing.anchored(12, group.model, 32)
    alone = replace(group.arms["held"], slot=None)
    stacks = {c: stack_cohorts([alone.select([c])]) for c in ("a1", "c1")}
    found = {c: pooled_features(store, s, store.rows(ANCHORS)) for c, s in stacks.items()}
    assert not torch.allclose(found["a1"], found["c1"])
    backbone = copy.deepcopy(group.model.backbone)
    held = group.arms["held"].take("a1")
    for block in range(backbone.depth):
        for name, linear in backbone.linears(block).items():
            if f"lora_a/{name}" in held:
                scale = group.model.layout.alpha / held[f"lora_a/{name}"].shape[0]
                linear.weight.data += scale * held[f"lora_b/{name}"] @ held[f"lora_a/{name}"]
    task, texts = make_task(), anchor_texts(12, federation.config.seed)
    for row, text in enumerate(texts):
        inputs = backbone.tokenize(task, [Example((text,), 0)], 32)
        hidden = backbone.embed(inputs)
        context = backbone.context(hidden, inputs.mask)
        for block in range(backbone.depth):
            hidden = backbone.block(block, hidden, context)
        assert torch.allclose(hidden[0].mean(0), found["a1"][row], atol=1e-9)


def test_signatures_are_averaged_over_rounds_and_zero_where_unknown():
    new = torch.arange(4, dtype=torch.float32)
    first = remember(None, new, 0.9)
    assert first.dtype == torch.float64 and torch.equal(first, new.double())
    assert torch.allclose(remember(first, new + 4, 0.25), new.double() + 3)
    rows = known_signatures({"b": first}, ["a", "b"])
    assert torch.equal(rows, torch.stack([torch.zeros(4).double(), first]))
    assert known_signatures({"b": first}, ["a"]) is None


@pytest.mark.parametrize("strategy", ["simgrad", "repsim"])
def test_clients_of_all_backbones_sign_alike_in_every_round(strategy):
    config = make_config(strategy=strategy, relevance={"sketch": 32, "anchors": 5})
    federation, events = assemble(config, make_people()), []
    run_rounds(federation.plan, federation.state, federation.engine,
               lambda *event: events.append(event), lambda state: True)  # fmt: skip
    signed = [fields for name, fields in events if name == "signed"]
    assert len(signed) == 2 * 6
    for fields in signed:
        assert set(fields) == {"round", "client", "norm", "clip", "noise", "examples"}
    width = 32 if strategy == "simgrad" else 15
    assert {tuple(s.shape) for s in federation.state.signatures.values()} == {(width,)}
    assert len(federation.state.signatures) == 6
    order = [name for name, fields in events if fields.get("round") == 1]
    assert max(i for i, n in enumerate(order) if n == "fitted") < order.index("signed")
    assert max(i for i, n in enumerate(order) if n == "signed") < order.index("mixed")


class Spoiler:
    """Passes everything on, but spoils the signatures of one client after the first round."""

    def __init__(self, engine, client, spoil):
        self.engine, self.client, self.spoil, self.asked = engine, client, spoil, []

    def ask(self, task, payloads):
        replies = self.engine.ask(task, payloads)
        if task != "signature":
            return replies
        self.asked.append(sorted(payloads))
        if len(self.asked) > 1:
            message = decode(replies[self.client])
            values = self.spoil(message.tensors["signature"])
            replies[self.client] = encode({"signature": values}, message.facts)
        return replies


BAD = {
    "shape": lambda values: values[:-1],
    "finite": lambda values: values * float("nan"),
    "norm": lambda values: values * 1e3 + 5.0,
    "dtype": lambda values: values.double(),
}


@pytest.mark.parametrize("why", sorted(BAD))
def test_a_bad_signature_is_refused_and_the_last_one_kept(why):
    config = make_config(strategy="simgrad", rounds=2, relevance={"sketch": 32, "batches": 1})
    federation = assemble(config, make_clients())
    engine = Spoiler(federation.engine, "a2", BAD[why])
    run_round(federation.plan, federation.state, engine, ignore)
    before = dict(federation.state.signatures)
    run_round(federation.plan, federation.state, engine, ignore)
    (refused,) = federation.state.refused
    assert (refused["client"], refused["round"]) == ("a2", 2)
    assert refused["reason"].startswith(f"signature: {why}")
    after = federation.state.signatures
    assert [client for client in after if torch.equal(after[client], before[client])] == ["a2"]
    assert federation.state.failures == []


def test_only_those_who_fitted_are_asked_and_others_are_nobody_to_learn_from():
    config = make_config(strategy="simgrad", rounds=1, sample=0.4, absent="last")
    federation, events = assemble(config, make_clients()), []
    run_round(federation.plan, federation.state, federation.engine,
              lambda *event: events.append(event))  # fmt: skip
    fitted = sorted(fields["client"] for name, fields in events if name == "fitted")
    assert sorted(federation.state.signatures) == fitted and len(fitted) == 2
    (mixed,) = [fields for name, fields in events if name == "mixed"]
    for client, row in zip(mixed["clients"], mixed["weights"], strict=True):
        taken = {c for c, share in zip(mixed["clients"], row, strict=True) if share}
        assert taken == (set(fitted) - {client} if client in fitted else {client})


def test_no_other_strategy_asks_and_the_signature_changes_the_outcome():
    heads = {}
    for strategy, noise in (("fedavg", 0.0), ("simgrad", 0.0), ("simgrad", 3.0)):
        config = make_config(strategy=strategy, relevance={"noise": noise})
        federation = assemble(config, make_clients())
        run_rounds(federation.plan, federation.state, federation.engine, ignore, lambda _: True)
        assert bool(federation.state.signatures) == (strategy == "simgrad")
        heads[strategy, noise] = federation.engine.groups[0].arms["held"].take("a1")
    (name, *_) = heads["fedavg", 0.0]
    found = [adapter[name] for adapter in heads.values()]
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])


@pytest.mark.parametrize(("probe", "why"), [("tiny", "encoder"), ("nobody-knows", "nobody-knows")])
def test_a_probe_that_will_not_do_is_refused_at_once(probe, why):
    with pytest.raises(InputError, match=why):
        assemble(make_config(strategy="simgrad", relevance={"probe": probe}), make_clients())
    assemble(make_config(strategy="repsim", relevance={"probe": probe}), make_clients())


def test_the_probes_weights_are_part_of_what_a_resumed_run_must_meet():
    for strategy, there in (("simgrad", True), ("repsim", False)):
        identity = assemble(make_config(strategy=strategy), make_clients()).identity
        assert ("weights of tiny-causal" in identity) == there
