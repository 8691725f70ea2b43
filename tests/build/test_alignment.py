"""From settings to bases: a twin that computes the same in other numbers is found."""

import pytest
import torch

from atlas.backbones.load import load_backbone
from atlas.bench.planted import widened_twin
from atlas.build import alignment
from atlas.build.alignment import find_bases
from atlas.build.models import find_model
from atlas.config.plan import AlignSettings
from atlas.errors import InputError
from tests.helpers import make_config

RANK, LENGTH = 6, 160


def model_of(name, modules=("q_proj", "v_proj"), blocks=2):
    backbone = {"name": str(name), "max_length": LENGTH}
    adapter = {"modules": list(modules), "blocks": blocks, "rank": 3}
    return find_model(make_config(backbone=backbone, adapter=adapter), str(name))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A small Llama, and its twin that is wider, deeper and larger in its numbers."""
    folder = tmp_path_factory.mktemp("planted") / "twin"
    source = load_backbone("tiny-causal")
    twin = widened_twin(source, folder, width=80, before=(0, 0), gain=2.0)
    return {"tiny-causal": model_of("tiny-causal"), "twin": model_of(twin)}


def bases(models, method="paired", rank=RANK, seed=0, **changes):
    settings = AlignSettings(method=method, texts=96, **changes)
    return find_bases(settings, models, rank, seed, LENGTH)


@pytest.mark.parametrize("method", ["paired", "cca"])
def test_bases_of_a_twin_agree_with_the_originals(models, method):
    found = bases(models, method)
    assert found.reference == "tiny-causal"
    changes = {} if method == "paired" else {"ridge": 0.0}
    for entry in bases(models, method, **changes).report:
        assert entry["after"] < 1e-4 and entry["angle_after"] < 0.1
        assert entry["before"] > entry["after"] or entry["before"] < 1e-4
    told = found.summary()["twin"]
    assert told["after"] < 0.05 and told["before"] > 0.5
    for pair in bases(models, method, **changes).pairs["twin"]:
        assert pair.size_in == pytest.approx(2.0, rel=1e-3), "of the twin's gain"
        assert pair.size_out == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("method", ["unpaired", "random"])
def test_without_pairing_they_do_not(models, method):
    found = bases(models, method)
    assert min(entry["after"] for entry in found.report) > 0.5
    assert found.summary()["twin"]["after"] > 1.0


def test_bases_are_found_once_and_are_the_same_bits_when_found_again(models, monkeypatch):
    first = bases(models)
    monkeypatch.setattr(alignment, "text_features", lambda *given: pytest.fail("ran again"))
    assert bases(models) is first
    assert bases(models, "cca") is not first, "features are shared, bases are not"
    monkeypatch.undo()
    alignment._bases.clear()
    alignment._features.clear()
    again = bases(models)
    assert again is not first and again.report == first.report
    for name, pairs in first.pairs.items():
        for one, two in zip(pairs, again.pairs[name], strict=True):
            assert torch.equal(one.a, two.a) and torch.equal(one.b, two.b)


def test_texts_follow_the_seed_and_little_is_kept(models):
    one, two = bases(models), bases(models, seed=5)
    assert not torch.allclose(one.pairs["twin"][0].a, two.pairs["twin"][0].a, atol=1e-3)
    for seed in range(12):
        find_bases(AlignSettings(texts=16), {"tiny-causal": models["tiny-causal"]}, 2, seed, 40)
    assert len(alignment._bases) <= alignment.KEPT and len(alignment._features) <= alignment.KEPT


def test_an_encoder_and_a_causal_model_can_be_aligned(models):
    pair = {"tiny": model_of("tiny", ("query", "value")), **models}
    found = bases(pair, rank=4)
    assert found.reference == "tiny" and set(found.pairs) == set(pair)


def test_what_layers_and_texts_do_not_have_is_refused(models):
    with pytest.raises(InputError, match=r"adapter.rank: 17 given.*span 16 directions"):
        bases(models, rank=17)
    with pytest.raises(InputError, match=r"span 7 directions over 8 anchor texts.*align.texts"):
        find_bases(AlignSettings(texts=8), models, 8, 0, LENGTH)
    with pytest.raises(InputError, match="unequal numbers of adapted modules"):
        bases({**models, "twin": model_of("tiny-causal", blocks=3)})
