"""An Atlas model as a backbone of the federation, like any other."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from atlas.backbones.export import export_adapter, load_adapter, merge_adapter
from atlas.backbones.load import load_backbone
from atlas.build.federation import assemble
from atlas.federation.batching.packing import pack
from atlas.federation.clients import ClientData, Example, Task
from atlas.federation.exchange.message import decode, encode
from atlas.federation.rounds import run_round
from atlas.federation.training.evaluate import Limits
from tests.backbones.memory_lm.helpers import off, save_backbone
from tests.helpers import make_client, make_config

ECHO = Task("echo", "causal", ("q",), "a", metric="exact_match", prompt="Q: {q} A:")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_backbone(tmp_path_factory.mktemp("models") / "atlas-tiny")


def echo_client(name, seed):
    draw = np.random.default_rng(seed)

    def some(count):
        words = [("ab", "cd", "ef")[i] for i in draw.integers(0, 3, count)]
        return tuple(Example((f"Q: {w} A:",), -1, answer=f" {w}") for w in words)

    return ClientData(name, ECHO, some(8), some(4), some(6), ECHO.name)


@pytest.mark.parametrize(
    "kind", ["gate", "omega", "context", "layer", "none", "chunk-start", "levels"]
)
def test_block_by_block_and_packed_are_the_model(kind, tmp_path, tools):
    folder = save_backbone(tmp_path / kind, kind)
    backbone = load_backbone(str(folder), dtype=torch.float64)
    inputs = backbone.tokenize(tools.answer, tools.questions, 48)
    assert not inputs.mask.all()
    hidden = tools.hidden(backbone, inputs)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        wanted = model(inputs.ids, attention_mask=inputs.mask.long()).logits
    found = backbone.vocabulary_logits(hidden)
    assert off(found[inputs.mask], wanted[inputs.mask]) < 1e-10
    lengths = inputs.mask.sum(1).numpy()[None]
    packing = pack(lengths, np.ones_like(lengths, dtype=bool), backbone.device).packing
    packed = packing.gather(backbone.embed(inputs))
    context = backbone.context(packing.frame(packed), packing.mask)
    for index in range(backbone.depth - 1):
        packed = backbone.packed_block(index, packed, packing, context)
    last = backbone.packed_features(packed, packing, context, {})
    assert off(last, backbone.features(hidden, inputs.mask)) < 1e-10
    whole = backbone.packed_block(backbone.depth - 1, packed, packing, context)
    assert off(packing.spread(whole)[packing.mask], hidden[inputs.mask]) < 1e-10


def test_a_federation_runs_on_it(folder):
    clients = [echo_client("e1", 1), echo_client("e2", 4), make_client("s1", seed=3)]
    modules = ["query", "value", "memory_key", "memory_value"]
    config = make_config(
        backbone={"name": str(folder), "max_length": 40, "max_new_tokens": 4},
        adapter={"modules": modules},
        train={"lr": 0.03},
    )
    federation = assemble(config, clients)
    before = federation.engine.groups[0].arms["held"].take("e1")
    before = {name: value.clone() for name, value in before.items()}
    losses = []
    for _ in range(2):
        run_round(
            federation.plan,
            federation.state,
            federation.engine,
            lambda event, fields: losses.append(fields["loss"]) if event == "fitted" else None,
        )
    assert not federation.state.failures
    assert not federation.state.refused
    assert np.mean(losses[3:]) < np.mean(losses[:3])
    after = federation.engine.groups[0].arms["held"].take("e1")
    moved = [name for name in after if "memory" in name and off(after[name], before[name]) > 1e-6]
    assert len(moved) == 8, "A and B of two modules in two blocks"
    request = encode({}, {"split": "test", "arm": "final"})
    replies = federation.engine.ask("evaluate", dict.fromkeys(federation.holders, request))
    scores = {c: decode(reply).facts["members"][c] for c, reply in replies.items()}
    assert {"exact_match", "loss"} <= set(scores["e1"])
    assert all(np.isfinite(list(found.values())).all() for found in scores.values())


def test_generation_of_a_batch_is_that_of_each_prompt(folder):
    backbone = load_backbone(str(folder))
    prompts = ["once upon a time", "hi", ""]
    assert backbone.generate(prompts, 6) == [backbone.generate([p], 6)[0] for p in prompts]


def test_an_adapter_is_exported_and_merged(folder, tmp_path, tools):
    backbone = load_backbone(str(folder))
    layers, head = tools.layers(backbone), tools.head(backbone, 3)
    export_adapter(
        tmp_path / "adapter",
        backbone=backbone,
        task=tools.classify,
        limits=Limits(24, 8),
        layers=layers,
        alpha=8.0,
        head=head,
        card={},
    )
    merge_adapter(
        tmp_path / "merged", backbone=backbone, adapter=load_adapter(tmp_path / "adapter")
    )
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    with tools.adapted(backbone, layers, 8.0):
        wanted = tools.logits(backbone, inputs, head)
    assert off(tools.whole(merged, backbone, inputs), wanted) < 1e-4
    assert off(tools.logits(backbone, inputs, head), wanted) > 1e-2
