"""BERT in modules of our own, bit for bit as transformers, and what is left to the latter."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, BertForSequenceClassification

from atlas.backbones.bert import Bert, read_bert
from atlas.backbones.load import load_backbone
from atlas.backbones.transformer import TransformerBackbone


def theirs(folder, tokenizer, dtype=torch.float32):
    """The same folder behind the same protocol, read by transformers."""
    model = AutoModel.from_pretrained(folder, dtype=dtype)
    return TransformerBackbone(
        model, tokenizer, name="theirs", source="theirs", device=torch.device("cpu")
    )


def copied(checkpoint, folder, **changes):
    shutil.copytree(checkpoint("bert"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_number_is_that_of_transformers(checkpoint, backbone_of, tools, dtype):
    ours = backbone_of("bert", dtype)
    assert isinstance(ours.model, Bert)
    other = theirs(checkpoint("bert"), ours.tokenizer, dtype)
    assert ours.fingerprint() == other.fingerprint()
    assert ours.size == other.size
    assert ours.linears(0).keys() == other.linears(0).keys()
    inputs = ours.tokenize(tools.classify, tools.pairs, 24)
    assert not inputs.mask.all()
    found = [tools.hidden(backbone, inputs) for backbone in (ours, other)]
    assert torch.equal(*found)
    features = [b.features(h, inputs.mask) for b, h in zip((ours, other), found, strict=True)]
    assert torch.equal(*features)


def test_a_checkpoint_with_a_head_is_read_too(checkpoint, backbone_of, tmp_path):
    folder = copied(checkpoint, tmp_path / "classifier")
    BertForSequenceClassification.from_pretrained(folder).save_pretrained(folder)
    assert any(name.startswith("bert.") for name in load_file(folder / "model.safetensors"))
    ours = load_backbone(str(folder))
    assert isinstance(ours.model, Bert)
    assert ours.fingerprint() == backbone_of("bert").fingerprint()


def test_without_a_pooler_none_is_made_up(checkpoint, backbone_of):
    ours = backbone_of("bert-bare")
    assert isinstance(ours.model, Bert)
    assert ours.model.pooler is None
    assert [layer.name for layer in ours.head_layers] == ["bert.pooler.dense", "classifier"]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not tell")
def test_weights_are_mapped_and_not_copied(checkpoint):
    folder = checkpoint("bert")
    config = AutoConfig.from_pretrained(folder)
    model, _ = read_bert(folder, config, torch.float32)
    other, _ = read_bert(folder, config, torch.float64)
    maps = Path("/proc/self/maps").read_text().splitlines()
    ends = [line.split()[0].split("-") for line in maps if str(folder) in line]
    ranges = [range(int(start, 16), int(end, 16)) for start, end in ends]

    def mapped(value):
        return any(value.data_ptr() in one for one in ranges)

    assert all(mapped(value) for value in model.state_dict().values())
    assert not any(mapped(value) for value in other.state_dict().values())


@pytest.mark.parametrize("change", [{"hidden_act": "relu"}, {"hidden_act": "gelu_new"}])
def test_what_these_modules_do_not_have_is_left_to_transformers(
    checkpoint, tmp_path, tools, change
):
    folder = copied(checkpoint, tmp_path / "other", **change)
    backbone = load_backbone(str(folder))
    assert not isinstance(backbone.model, Bert)
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    other = theirs(folder, backbone.tokenizer)
    assert torch.equal(tools.hidden(backbone, inputs), tools.hidden(other, inputs))


def test_weights_in_several_files_are_left_to_transformers(checkpoint, backbone_of, tmp_path):
    folder = copied(checkpoint, tmp_path / "sharded")
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(whole)
    files = {"model-00001-of-00002.safetensors": names[::2]}
    files["model-00002-of-00002.safetensors"] = names[1::2]
    for file, some in files.items():
        save_file({name: whole[name] for name in some}, folder / file, metadata={"format": "pt"})
    where = {name: file for file, some in files.items() for name in some}
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = load_backbone(str(folder))
    assert not isinstance(found.model, Bert)
    assert found.fingerprint() == backbone_of("bert").fingerprint()


def test_what_is_saved_is_read_by_transformers(backbone_of, tmp_path):
    ours = backbone_of("bert")
    ours.model.save_pretrained(tmp_path)
    assert theirs(tmp_path, ours.tokenizer).fingerprint() == ours.fingerprint()
