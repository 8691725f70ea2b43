"""Means over texts of what adapted modules see, against a text at a time through the model."""

from dataclasses import replace

import pytest
import torch

from atlas.build.models import find_model
from atlas.data.anchors import anchor_texts
from atlas.federation.alignment import features as module
from atlas.federation.alignment.features import text_features
from atlas.federation.batching.backbone import Inputs
from tests.helpers import make_config

TEXTS = anchor_texts(21, 0)
KINDS = {"tiny": ["query", "value"], "tiny-causal": ["q_proj", "v_proj"]}


def model_of(name, blocks=2):
    backbone = {"name": name, "max_length": 200}
    adapter = {"modules": KINDS[name], "blocks": blocks, "rank": 3}
    return find_model(make_config(backbone=backbone, adapter=adapter), name)


def naive(model, text):
    """What one text alone makes of every module: the whole model, nothing padded."""
    backbone, seen = model.backbone, {}
    ids = torch.tensor([backbone.tokenizer(text)["input_ids"]])

    def keep(name):
        def hook(own, args, output):
            seen[name] = args[0][0].double(), output[0].double()

        return hook

    modules = dict(backbone.body.named_modules())
    handles = [modules[n].register_forward_hook(keep(n)) for n in model.layout.modules]
    one = Inputs(ids, torch.ones_like(ids).bool(), torch.zeros_like(ids))
    with torch.no_grad():
        hidden = backbone.embed(one)
        for block in range(backbone.depth):
            hidden = backbone.block(block, hidden, backbone.context(hidden, one.mask))
    for handle in handles:
        handle.remove()
    return [[part[1:].mean(0) for part in seen[name]] for name in model.layout.modules]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_features_are_those_of_each_text_alone(name):
    model = model_of(name)
    found = text_features(model, TEXTS, 200)
    for number, text in enumerate(TEXTS):
        for i, (wanted_in, wanted_out) in enumerate(naive(model, text)):
            assert torch.allclose(found.inputs[i][number], wanted_in, atol=1e-5)
            assert torch.allclose(found.outputs[i][number], wanted_out, atol=1e-5)
    widths = [(x.shape[1], y.shape[1]) for x, y in zip(found.inputs, found.outputs, strict=True)]
    assert tuple(widths) == model.layout.widths


@pytest.mark.parametrize("name", sorted(KINDS))
def test_hooks_are_gone_afterwards_and_weights_as_they_were(name, monkeypatch):
    model = model_of(name)
    before = model.backbone.fingerprint()
    text_features(model, TEXTS[:3], 200)

    def broken(*given):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(module, "run_prefix", broken)
    with pytest.raises(RuntimeError, match="in the middle"):
        text_features(model, TEXTS[:3], 200)
    for block in range(model.backbone.depth):
        assert not any(own._forward_hooks for own in model.backbone.linears(block).values())
    assert model.backbone.fingerprint() == before


def test_the_same_bits_twice_and_texts_are_cut():
    model = model_of("tiny-causal")
    one, two = (text_features(model, TEXTS, 200) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.inputs, two.inputs, strict=True))
    short = text_features(model, TEXTS, 5)
    assert not torch.allclose(short.inputs[0], one.inputs[0])
    assert bool(text_features(model, ["", "a"], 1).inputs[0].isfinite().all())


def test_blocks_above_the_last_adapter_do_not_run(monkeypatch):
    model = model_of("tiny-causal", blocks=3)
    low = model.layout.modules[:2]
    layout = replace(model.layout, modules=low, widths=model.layout.widths[:2])
    ran = []
    real = module.run_prefix
    monkeypatch.setattr(module, "run_prefix", lambda b, i, n: ran.append(n) or real(b, i, n))
    found = text_features(replace(model, layout=layout), TEXTS[:3], 200)
    assert set(ran) == {1} and len(found.inputs) == 2
