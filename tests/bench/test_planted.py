"""Planted cases are what they claim to be."""

import pytest
import torch

from atlas.backbones.load import load_backbone
from atlas.bench.planted import rotated_copies, widened_twin
from atlas.errors import InputError


def logits(backbone, ids):
    with torch.no_grad():
        return backbone.model(input_ids=ids).logits


def gap(source, twin):
    ids = source.tokenizer(["The cook praised the waiter at noon."], return_tensors="pt")
    assert torch.equal(
        ids["input_ids"],
        twin.tokenizer(["The cook praised the waiter at noon."], return_tensors="pt")["input_ids"],
    )
    return float((logits(source, ids["input_ids"]) - logits(twin, ids["input_ids"])).abs().max())


@pytest.mark.parametrize("before", [(), (0,), (0, 1, 1, 2)])
@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_a_wider_and_deeper_twin_computes_the_same(before, gain, tmp_path):
    source = load_backbone("tiny-causal")
    folder = widened_twin(source, tmp_path / "twin", width=76, before=before, gain=gain)
    twin = load_backbone(str(folder))
    assert (twin.width, twin.depth) == (76, 3 + len(before))
    assert gap(source, twin) < 1e-4
    other = widened_twin(source, tmp_path / "other", width=76, before=before, seed=1)
    assert load_backbone(str(other)).weights_id != twin.weights_id


def test_the_same_arguments_make_the_same_bits(tmp_path):
    source = load_backbone("tiny-causal")
    folders = [widened_twin(source, tmp_path / name, width=40) for name in ("one", "two")]
    one, two = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert one == two


def test_a_trained_model_has_a_twin(real_data, tmp_path):
    folder = real_data.parent / "models" / "stories260K"
    if not folder.is_dir():
        pytest.skip("there is no models/stories260K beside the data folder")
    source = load_backbone(str(folder))
    twin = load_backbone(str(widened_twin(source, tmp_path / "twin", width=96, before=(0, 3))))
    assert gap(source, twin) < 1e-4
    assert twin.generate(["Once upon a time"], 12) == source.generate(["Once upon a time"], 12)


@pytest.mark.parametrize("bad", [{"width": 28}, {"width": 34}, {"width": 64, "before": (3,)}])
def test_what_cannot_be_made_is_refused(bad, tmp_path):
    with pytest.raises(InputError, match="allowed are multiples of 4 from 32 and blocks 0 to 2"):
        widened_twin(load_backbone("tiny-causal"), tmp_path, **bad)
    with pytest.raises(InputError, match="not of a bert"):
        widened_twin(load_backbone("tiny"), tmp_path, width=64)


def test_copies_of_one_adapter_have_one_product_and_many_gauges():
    a, b, ranks, scales = rotated_copies(8, 4, (20, 12), 0)
    products = b.double() @ a.double()
    assert torch.allclose(products, products[:1].expand_as(products), atol=1e-5)
    turns = a.double() @ torch.linalg.pinv(a[0].double())
    assert torch.linalg.det(turns).sign().tolist() == [1.0, -1.0] * 4
    assert ranks.tolist() == [4] * 8 and scales.tolist() == [1.0] * 8
