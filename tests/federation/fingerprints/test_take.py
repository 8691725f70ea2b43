"""Fingerprints against plain autograd on the real weights, one example at a time, in float64."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from atlas.build.federation import assemble
from atlas.config.plan import FingerprintSettings
from atlas.engines.local.fingerprint import print_group
from atlas.federation.adapters.adapter import adapter_sha256
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.clients import ClientData, Example, Task
from atlas.federation.exchange.guard import Expected, Refusal, check_reply
from atlas.federation.exchange.message import encode
from atlas.federation.exchange.transport import CONTRACTS
from atlas.federation.fingerprints import take as fingerprint
from atlas.federation.fingerprints.take import fold_examples, print_shapes, take_print
from atlas.federation.training.loop import Clock, Course, Lesson, fit
from atlas.ops.sketch import count_sketch
from atlas.runs.seeds import generator
from tests.helpers import make_client, make_clients, make_config

ECHO = Task("echo", "causal", ("q",), "a", metric="exact_match", prompt="Q: {q} A:")
PARTS = ["mean", "text", "label"]
SEED = 5
CLOCK = Clock(SEED, 0, 3)


def exact(**changes):
    """Everything, nothing hashed, two folds."""
    return FingerprintSettings(parts=PARTS, sketch=0, folds=2, **changes)


def make_echo(name="e1", count=6, seed=1):
    draw = np.random.default_rng(seed)
    words = ["ab", "cd", "efg"]
    examples = tuple(
        Example((f"Q: {w} A:",), -1, answer=f" {w}")
        for w in (words[i] for i in draw.integers(0, 3, count))
    )
    return ClientData(name, ECHO, examples, examples[:2], examples[:2], "echo")


def make_group(clients, *, loud=False, **changes):
    """The first group of a federation; loud adapters and heads are as if trained."""
    name = "tiny-causal" if clients[0].task.kind == "causal" else "tiny"
    backbone = {"name": name, "dtype": "float64"}
    config = make_config(seed=SEED, rounds=3, strategy="mira", backbone=backbone, **changes)
    federation = assemble(config, clients)
    (group,) = federation.engine.groups
    if loud:
        draw = torch.Generator().manual_seed(1)
        held = group.arms["held"]
        adapters = {
            client: {
                name: value + 0.2 * torch.randn(value.shape, generator=draw, dtype=value.dtype)
                for name, value in held.take(client).items()
            }
            for client in held.clients
        }
        group.arms["held"] = held.put(adapters)
    return federation, group


def take(group, client, settings, train=None):
    train = train or make_config().train
    return print_group(group, [client], settings, train, CLOCK)[client]


class Twin:
    """The gradient of one client's examples, with the adapter merged into a copy of the weights."""

    def __init__(self, group, client, blocks):
        self.backbone = copy.deepcopy(group.model.backbone)
        self.layout, self.data = group.model.layout, group.holders[client].data
        self.length = group.limits.max_length
        adapter = group.arms["held"].take(client)
        every = {
            k: v for b in range(self.backbone.depth) for k, v in self.backbone.linears(b).items()
        }
        for module in self.layout.modules:
            a, b = adapter[f"lora_a/{module}"], adapter[f"lora_b/{module}"]
            every[module].weight.data += self.layout.alpha / a.shape[0] * (b @ a)
        looked_at = range(self.backbone.depth - blocks, self.backbone.depth)
        self.weights = {k: v.weight for b in looked_at for k, v in self.backbone.linears(b).items()}
        self.weights |= {k: v.clone() for k, v in adapter.items() if k.startswith("head/")}
        for value in self.weights.values():
            value.requires_grad_()

    def hidden(self, inputs):
        hidden = self.backbone.embed(inputs)
        context = self.backbone.context(hidden, inputs.mask)
        for block in range(self.backbone.depth):
            hidden = self.backbone.block(block, hidden, context)
        return hidden

    def logits(self, example):
        inputs = self.backbone.tokenize(self.data.task, [example], self.length)
        x = self.backbone.features(self.hidden(inputs), inputs.mask)[0]
        for layer in self.layout.head:
            x = self.weights[f"head/{layer.name}.weight"] @ x
            x = x + self.weights[f"head/{layer.name}.bias"] if layer.bias else x
        return x

    def loss(self, example):
        if self.data.task.kind == "classification":
            return cross_entropy(self.logits(example), torch.tensor(example.label))
        inputs = self.backbone.tokenize(self.data.task, [example], self.length)
        logits = self.backbone.vocabulary_logits(self.hidden(inputs)[0])
        losses = [
            -torch.log_softmax(row, 0)[target]
            for row, target in zip(logits, inputs.targets[0].tolist(), strict=True)
            if target >= 0
        ]
        return sum(losses) / len(losses)

    def contrast(self, example):
        logits = self.logits(example)
        return logits[0] - sum(logits[1:]) / (len(logits) - 1)

    def balance(self):
        """Every class counts the same, and every example of a class."""
        labels = [example.label for example in self.data.train]
        return [1 / (len(set(labels)) * labels.count(own)) for own in labels]

    def gradients(self, each, shares):
        total = sum(s * each(e) for s, e in zip(shares, self.data.train, strict=True))
        compared = {k: v for k, v in self.weights.items() if not k.endswith(".bias")}
        found = torch.autograd.grad(total, list(compared.values()), materialize_grads=True)
        return dict(zip(compared, found, strict=True))

    def part(self, part):
        plain = [1 / len(self.data.train)] * len(self.data.train)
        if self.data.task.kind == "causal":
            return self.gradients(self.loss, [0.0] * len(plain) if part == "label" else plain)
        if part == "text":
            return self.gradients(self.contrast, self.balance())
        return self.gradients(self.loss, plain if part == "mean" else self.balance())


def layers_of(found, part, twin, settings):
    """An exact print cut into layers: every fold's row [folds, size] by layer."""
    rows = {}
    for name, places in (
        (part, [k for k in found.norms[part] if not k.startswith("head/")]),
        (f"{part}/head", [k for k in found.norms[part] if k.startswith("head/")]),
    ):
        if places:
            sizes = [twin.weights[k].numel() for k in places]
            rows |= dict(zip(places, found.sketches[name].double().split(sizes, 1), strict=True))
    assert settings.head or not any(k.startswith("head/") for k in rows)
    return rows


def check_against_twin(group, client, settings, *, in_full=False):
    """Compare what is sent with the twin; `in_full` also what is not yet rounded for sending."""
    twin, found = Twin(group, client, settings.blocks), take(group, client, settings)
    exactly = summed_in_full(group, client, settings) if in_full else {}
    for part in settings.parts:
        wanted = twin.part(part)
        rows = layers_of(found, part, twin, settings)
        if settings.head:
            assert set(rows) == set(wanted)
        for layer, folds in rows.items():
            length = float(wanted[layer].norm())
            assert found.norms[part][layer] == pytest.approx(length, rel=1e-8, abs=1e-12)
            unit = wanted[layer].flatten() / max(length, 1e-30)
            # What is sent is float32, so a single number is as good as that.
            assert torch.allclose(folds.sum(0), unit, rtol=0, atol=1e-6), (part, layer)
            if in_full:
                scaled = exactly[part, layer] / max(length, 1e-30)
                assert torch.allclose(scaled, unit, rtol=0, atol=1e-8), (part, layer)
    return found


def summed_in_full(group, client, settings):
    """The gradients before they are rounded for sending, summed over folds."""
    stack = stack_cohorts([group.arms["held"].select([client])])
    rows = group.store.rows(f"{client}/train")
    folds = fold_examples(group.store, Lesson(client, rows, rows[:0]), settings, SEED)
    weights = fingerprint.example_weights(group.store, stack, np.concatenate(folds))
    total = {}
    for fold in folds:
        found = fingerprint.fold_gradients(group.store, stack, fold, weights, settings)
        for key, value in found.items():
            total[key] = total.get(key, 0) + value.flatten()
    return total


def whole(found, part):
    """A part's sum over folds, body and head."""
    names = [name for name in (part, f"{part}/head") if name in found.sketches]
    return torch.cat([found.sketches[name].double().sum(0) for name in names])


def cosine(one, two):
    return float(one.flatten() @ two.flatten() / (one.norm() * two.norm()))


@pytest.mark.parametrize("client", ["a1", "c1"])
def test_gradients_caught_by_hooks_are_those_of_the_real_weights(client):
    _, group = make_group(make_clients(), loud=True)
    check_against_twin(group, client, exact(), in_full=True)


def test_gradients_of_a_causal_task():
    _, group = make_group([make_echo(), make_echo("e2", 5, 2)], loud=True)
    found = check_against_twin(group, "e1", exact(), in_full=True)
    assert set(found.sketches) == set(PARTS), "no head, so none is sent"
    assert torch.equal(found.sketches["text"], found.sketches["mean"])
    assert not found.sketches["label"].any()


@pytest.mark.parametrize(("adapted", "looked_at"), [(1, 3), (3, 1)])
def test_more_or_fewer_blocks_than_are_adapted(adapted, looked_at):
    _, group = make_group(make_clients(), loud=True, adapter={"blocks": adapted})
    found = check_against_twin(group, "a2", exact(blocks=looked_at))
    blocks = {int(name.split(".")[2]) for name in found.norms["text"] if "head/" not in name}
    assert blocks == set(range(3 - looked_at, 3))


def test_without_the_head_nothing_of_it_is_told():
    _, group = make_group(make_clients(), loud=True)
    found = check_against_twin(group, "a1", exact(head=False))
    assert set(found.sketches) == set(PARTS)
    assert not [name for norms in found.norms.values() for name in norms if "head/" in name]


def test_text_is_the_difference_of_the_class_means_at_a_fresh_head():
    _, group = make_group(make_clients())
    twin = Twin(group, "a2", 2)
    labels = [example.label for example in twin.data.train]
    signs = [(1 - 2 * own) / labels.count(own) for own in labels]
    difference = twin.gradients(twin.loss, signs)
    rows = layers_of(take(group, "a2", exact()), "text", twin, exact())
    for layer, folds in rows.items():
        assert abs(cosine(folds.sum(0), difference[layer])) > 0.99, layer


def swapped(client):
    return replace(client, train=tuple(replace(e, label=1 - e.label) for e in client.train))


def test_opposite_labels_turn_the_label_part_and_not_the_text_part():
    client = make_client("a1", train=20, seed=1)
    found = {}
    for name, data in (("as they are", client), ("swapped", swapped(client))):
        _, group = make_group([data])
        held = group.arms["held"]
        # As fresh as can be: at the start all classes are predicted alike only nearly.
        small = {k: 1e-3 * v for k, v in held.take("a1").items() if k.startswith("head/")}
        found[name] = take(group, "a1", exact()), take_at(group, small)
    (start, fresh), (start_swapped, fresh_swapped) = found.values()
    assert torch.allclose(whole(start_swapped, "text"), whole(start, "text"), rtol=0, atol=1e-6)
    assert cosine(body(start_swapped), body(start)) < -0.8
    assert torch.allclose(body(fresh_swapped), -body(fresh), rtol=0, atol=1e-3)
    assert abs(cosine(body(fresh), body(fresh, "text"))) < 0.9, "two parts, two contents"


def body(found, part="label"):
    """Without the head."""
    return found.sketches[part].double().sum(0)


def take_at(group, head):
    group.arms["held"] = group.arms["held"].put({"a1": head})
    return take(group, "a1", exact())


def test_a_class_counts_the_same_however_many_examples_it_has():
    client = make_client("a1", train=11, seed=1)
    again = tuple(example for example in client.train if example.label == 0)
    assert 0 < len(again) < 11
    _, group = make_group([client])
    _, more = make_group([replace(client, train=client.train + again)])
    before, after = take(group, "a1", exact()), take(more, "a1", exact())
    assert after.examples == before.examples + len(again)
    for part in ("text", "label"):
        assert torch.allclose(whole(after, part), whole(before, part), rtol=0, atol=1e-6)
        assert after.norms[part] == pytest.approx(before.norms[part])
    assert cosine(whole(after, "mean"), whole(before, "mean")) < 0.99
    assert not torch.allclose(whole(after, "mean"), whole(before, "mean"), rtol=0, atol=1e-2)


@pytest.mark.parametrize("client", ["a2", "c1"])
def test_a_sketch_is_the_sketch_of_the_exact_layers(client):
    _, group = make_group(make_clients(), loud=True)
    twin, settings = Twin(group, client, 2), exact()
    full = take(group, client, settings)
    short = take(group, client, settings.model_copy(update={"sketch": 48}))
    for part in PARTS:
        wanted = {part: torch.zeros(2, 48).double(), f"{part}/head": torch.zeros(2, 48).double()}
        for layer, folds in layers_of(full, part, twin, settings).items():
            seed = int(generator(SEED, "sketch", layer).integers(2**63))
            name = f"{part}/head" if layer.startswith("head/") else part
            wanted[name] += torch.stack([count_sketch(row, 48, seed) for row in folds])
        for name, rows in wanted.items():
            assert torch.allclose(short.sketches[name].double(), rows, rtol=0, atol=1e-5), name
    assert short.norms == full.norms


def test_sketches_keep_inner_products_of_clients():
    _, group = make_group(make_clients())
    clients = ["a1", "b1", "b2"]
    full = [take(group, c, exact(head=False)) for c in clients]
    short = [take(group, c, exact(head=False).model_copy(update={"sketch": 4096})) for c in clients]
    for part in PARTS:
        for i, j in ((0, 1), (0, 2), (1, 2)):
            layers = len(full[i].norms[part])
            truth = float(whole(full[i], part) @ whole(full[j], part)) / layers
            found = float(whole(short[i], part) @ whole(short[j], part)) / layers
            # Variance of at most (|a|^2 |b|^2 + <a, b>^2) / width; |a|^2 is the number of layers.
            assert abs(found - truth) < 4 * ((1 + truth**2) / 4096) ** 0.5
    assert not torch.allclose(short[0].sketches["text"], short[1].sketches["text"], atol=1e-3)


def made_up(labels):
    return SimpleNamespace(labels=torch.tensor(labels))


def test_folds_are_disjoint_cover_everything_and_hold_classes_alike():
    labels = np.random.default_rng(0).choice(3, size=203, p=[0.7, 0.2, 0.1])
    rows = np.arange(3, 203)
    folds = fold_examples(
        made_up(labels), Lesson("a", rows, rows[:0]), FingerprintSettings(folds=7), SEED
    )
    assert len(folds) == 7
    assert sorted(np.concatenate(folds).tolist()) == rows.tolist()
    for label in range(3):
        counts = [int((labels[fold] == label).sum()) for fold in folds]
        assert max(counts) - min(counts) <= 1, label
    mixed = np.concatenate([np.diff(fold[labels[fold] == 0]) for fold in folds])
    assert (mixed < 0).any(), "drawn, not dealt in the order of the file"


def test_folds_are_addressed_by_client_and_seed_alone():
    labels, rows = np.arange(100) % 2, np.arange(100)

    def folds(client, seed):
        lesson = Lesson(client, rows, rows[:0])
        found = fold_examples(made_up(labels), lesson, FingerprintSettings(), seed)
        return [fold.tolist() for fold in found]

    assert folds("a", 1) == folds("a", 1)
    assert folds("a", 1) != folds("b", 1)
    assert folds("a", 1) != folds("a", 2)


@pytest.mark.parametrize(("batches", "used"), [(2, 32), (64, 1024)])
def test_batches_cap_the_examples_and_the_cut_is_drawn(batches, used):
    rows = np.arange(1500)
    settings = FingerprintSettings(batches=batches, folds=4)
    folds = fold_examples(made_up(rows % 2), Lesson("a", rows, rows[:0]), settings, SEED)
    chosen = np.concatenate(folds)
    assert len(chosen) == len(set(chosen.tolist())) == used
    assert chosen.max() >= used, "not the first ones of the file"


def test_capped_examples_share_the_whole_weight():
    _, group = make_group([make_client("a1", train=50, seed=1)])
    found = take(group, "a1", exact(batches=2))
    assert found.examples == 32
    stack = stack_cohorts([group.arms["held"]])
    rows = group.store.rows("a1/train")[5:37]
    for part, weights in fingerprint.example_weights(group.store, stack, rows).items():
        assert float(weights.sum()) == pytest.approx(1.0), part
        assert set(torch.nonzero(weights).flatten().tolist()) == set(rows.tolist())


def test_more_folds_than_examples_leaves_rows_of_zeros():
    _, group = make_group([make_client("a1", train=3, seed=1)])
    settings = FingerprintSettings(parts=PARTS, folds=5, sketch=32)
    found = take(group, "a1", settings)
    assert {name: tuple(rows.shape) for name, rows in found.sketches.items()} == dict.fromkeys(
        [*PARTS, *(f"{part}/head" for part in PARTS)], (5, 32)
    )
    for rows in found.sketches.values():
        assert rows[:3].any(1).all() and not rows[3:].any()
    sums = take(group, "a1", settings.model_copy(update={"folds": 2}))
    assert torch.allclose(whole(found, "text"), whole(sums, "text"), rtol=0, atol=1e-5)


def test_long_folds_are_run_in_several_passes(monkeypatch):
    _, group = make_group([make_client("a1", train=23, seed=1)], loud=True)
    at_once = take(group, "a1", exact())
    monkeypatch.setattr(fingerprint, "EVALUATION_BATCH", 3)
    bit_by_bit = take(group, "a1", exact())
    for name, rows in at_once.sketches.items():
        assert torch.allclose(bit_by_bit.sketches[name], rows, rtol=0, atol=1e-5), name


def hooks_of(model):
    return [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


def test_the_backbone_is_left_as_it_was(monkeypatch):
    _, group = make_group(make_clients())
    model, held = group.model.backbone.model, group.arms["held"]
    before = (
        group.model.backbone.fingerprint(),
        [adapter_sha256(held.take(c)) for c in held.clients],
    )
    take(group, "a1", exact())
    take(group, "c1", exact(blocks=3, warmup=1))

    def fail(*args, **named):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(fingerprint, "run", fail)
    with pytest.raises(RuntimeError, match="memory"):
        take(group, "a2", exact())  # not known yet
    held = group.arms["held"]
    after = group.model.backbone.fingerprint(), [adapter_sha256(held.take(c)) for c in held.clients]
    assert after == before
    assert not hooks_of(model)
    assert not [p for p in model.parameters() if p.requires_grad or p.grad is not None]


@pytest.mark.parametrize("client", ["a1", "c1"])
def test_padding_beside_clients_of_other_label_counts_changes_nothing(client):
    together = make_group(make_clients())[1]
    alone = make_group([c for c in make_clients() if c.id == client])[1]
    one, two = take(together, client, exact()), take(alone, client, exact())
    assert one.sketches.keys() == two.sketches.keys()
    for name, rows in one.sketches.items():
        assert torch.allclose(rows, two.sketches[name], rtol=0, atol=1e-6), name
    assert one.norms["text"] == pytest.approx(two.norms["text"])


def test_every_layer_has_a_norm():
    _, group = make_group(make_clients())
    for client in group.holders:
        found = take(group, client, exact())
        linears = [name for block in (1, 2) for name in group.model.backbone.linears(block)]
        held = group.arms["held"].take(client)
        heads = [n for n in held if n.startswith("head/") and n.endswith(".weight")]
        for part in PARTS:
            assert sorted(found.norms[part]) == sorted([*linears, *heads])
            assert all(norm > 0 for norm in found.norms[part].values()), (client, part)


@pytest.mark.parametrize("sketch", [0, 40])
@pytest.mark.parametrize("head", [True, False])
def test_what_is_sent_has_the_shapes_that_are_expected(sketch, head):
    settings = {"sketch": sketch, "folds": 3, "blocks": 1, "head": head, "parts": ["mean", "label"]}
    for clients in (make_clients()[3:], [make_echo()]):
        federation, _ = make_group(clients, fingerprint=settings)
        plan = federation.plan
        request = encode({}, {"settings": plan.fingerprint.model_dump(mode="json")})
        replies = federation.engine.ask("fingerprint", dict.fromkeys(plan.print_shapes, request))
        for client, reply in replies.items():
            expected = Expected(plan.print_shapes[client], max_norm=1e6)
            message = check_reply(reply, CONTRACTS["fingerprint"].reply, expected)
            assert not isinstance(message, Refusal), message
            kept = {name: tuple(value.shape) for name, value in message.tensors.items()}
            assert kept == plan.print_shapes[client]
            assert any(name.endswith("/head") for name in kept) == (head and len(clients) > 1)
            assert message.facts["examples"] == len(federation.holders[client].data.train)


def test_shapes_of_an_exact_print_count_the_weights():
    _, group = make_group(make_clients())
    blocks = [
        sum(v.weight.numel() for v in group.model.backbone.linears(b).values()) for b in (1, 2)
    ]
    shapes = print_shapes(group.model, {"head/x.weight": (2, 5), "head/x.bias": (2,)}, exact())
    assert shapes["text"] == (2, sum(blocks))
    assert shapes["text/head"] == (2, 10)


def test_warmup_takes_the_print_after_local_training_and_keeps_nothing_of_it():
    _, group = make_group(make_clients())
    train = make_config().train
    cold, warm = take(group, "a1", exact()), take(group, "a1", exact(warmup=2), train)
    assert cosine(whole(cold, "label"), whole(warm, "label")) < 0.999
    twice = train.model_copy(update={"epochs": 2})
    stack = stack_cohorts([group.arms["held"].select(["a1"])])
    fitted = fit(group.store, Course(stack, [group.lesson("a1")]), twice, Clock(SEED, 1, 3))
    rows = group.store.rows("a1/train")
    wanted = take_print(group.store, fitted.stack, Lesson("a1", rows, rows[:0]), exact(), SEED)
    for name, value in wanted.sketches.items():
        assert torch.equal(warm.sketches[name], value), name
    again = take(group, "a1", exact())
    assert all(torch.equal(cold.sketches[name], again.sketches[name]) for name in cold.sketches)


def test_a_print_does_not_depend_on_who_else_is_asked():
    _, group = make_group(make_clients())
    settings, seen = exact(), []
    together = print_group(
        group, ["a1", "c1"], settings, make_config().train, CLOCK, lambda *a: seen.append(a)
    )
    for client in ("a1", "c1"):
        own = take(group, client, settings)
        assert all(torch.equal(own.sketches[n], r) for n, r in together[client].sketches.items())
    assert seen == [(1, 2), (2, 2)]
