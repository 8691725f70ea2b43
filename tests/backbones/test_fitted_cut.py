"""A cut model whose head was fitted to it: what the head reads, what is saved, what is refused."""

import math
import os
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from atlas.backbones.fitted_cut import fit_head, fitted_folder, shown_to_head
from atlas.backbones.load import load_backbone
from atlas.build.models import open_backbone
from atlas.config.load import load_config
from atlas.data.anchors import anchor_texts
from atlas.errors import InputError
from atlas.ops.alignment import ridge_map

TEXTS = anchor_texts(24, seed=3)


def logits_of(backbone, text):
    ids = backbone.tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        return ids[0], backbone.model(input_ids=ids).logits[0]


@pytest.mark.parametrize("ridge", [1e-3, 0.3])
def test_the_map_is_where_the_gradient_of_its_cost_vanishes(ridge):
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(40, 7, generator=draw, dtype=torch.float64) for _ in range(2))
    found = ridge_map(x, y, ridge).requires_grad_()
    pull = ridge * float((x.mT @ x).diagonal().mean())
    cost = (x @ found - y).square().sum() + pull * (found - torch.eye(7)).square().sum()
    (slope,) = torch.autograd.grad(cost, found)
    assert float(slope.abs().max()) < 1e-10 * float(cost.detach())
    torch.testing.assert_close(
        ridge_map(x, y, 1e9), torch.eye(7, dtype=torch.float64), atol=1e-6, rtol=0
    )


def test_the_head_reads_the_cut_state_as_the_whole_one_would(tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_CACHE", str(tmp_path))
    whole, cut = load_backbone("tiny-causal"), load_backbone("tiny-causal@1")
    folder = fitted_folder(whole, cut, TEXTS)
    made = load_backbone(str(folder))
    assert (made.name, made.depth, made.lowest) == ("tiny-causal@1-fitted", 1, None)
    weight = fit_head(whole, cut, TEXTS)
    for text in TEXTS[:3]:
        _, found = logits_of(made, text)
        naive = shown_to_head(cut, text) @ weight.double().mT
        torch.testing.assert_close(found[1:][: len(naive)].double(), naive, atol=1e-4, rtol=0)
    errors = [
        sum(float((logits_of(one, t)[1] - logits_of(whole, t)[1]).square().mean()) for t in TEXTS)
        for one in (cut, made)
    ]
    assert errors[1] < 0.9 * errors[0]
    # The whole model and its plain cut are what they were.
    assert torch.equal(whole.model.lm_head.weight, cut.model.lm_head.weight)


def test_it_is_made_once_and_named_by_what_it_is_made_of(tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_CACHE", str(tmp_path))
    whole, cut = load_backbone("tiny-causal"), load_backbone("tiny-causal@2")
    first = fitted_folder(whole, cut, TEXTS)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert fitted_folder(whole, cut, TEXTS) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert fitted_folder(whole, cut, TEXTS[:8]) != first


def test_settings_reach_it_and_bad_names_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_CACHE", str(tmp_path))
    config = load_config("mosaic", ["size=quick"])
    made = open_backbone(config, "tiny-causal@2-fitted")
    assert made.depth == 2 and made.name == "tiny-causal@2-fitted"
    assert open_backbone(config, "tiny-causal@2-fitted") is made
    with pytest.raises(InputError, match="NAME@N, such as smollm2@12"):
        open_backbone(config, "tiny-causal-fitted")
    with pytest.raises(InputError, match="tiny is an encoder"):
        open_backbone(config, "tiny@1-fitted")


def test_a_real_model_speaks_again(tmp_path, monkeypatch):
    data = os.environ.get("ATLAS_DATA")
    if not data:
        pytest.skip("needs ATLAS_DATA: stories260K lies beside it")
    monkeypatch.setenv("ATLAS_CACHE", str(tmp_path))
    stories = Path(data).parent / "models" / "stories260K"
    whole, cut = load_backbone(str(stories)), load_backbone(f"{stories}@3")
    made = load_backbone(str(fitted_folder(whole, cut, anchor_texts(96, seed=0))))

    def loss(backbone):
        told = [logits_of(backbone, text) for text in TEXTS]
        return sum(float(cross_entropy(z[:-1], ids[1:])) for ids, z in told) / len(told)

    plain, fitted, best = loss(cut), loss(made), loss(whole)
    assert best < fitted < plain - 0.5 and fitted < math.log(512)
