"""Exports load in plain PEFT and transformers, and give the same logits."""

import copy
import json
import os
import stat
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
)

from atlas.backbones.export import check_base, export_adapter, load_adapter, merge_adapter
from atlas.backbones.load import load_backbone
from atlas.errors import InputError
from atlas.federation.training.evaluate import Limits

ALPHA = 6.0
PLACE = Path.cwd() / "me"
CARD = {"client": "a|b", "metrics": {"accuracy": 0.912345, "alone": 0.9}, "data": PLACE}
CLASSIFIERS = ["bert", "bert-bare", "distilbert", "mpnet", "llama", "qwen2"]
CLASSIFIERS += ["roberta", "gpt2", "gemma", "qwen3"]
MODULES = {
    "bert": ["classifier"],
    "bert-bare": ["pooler", "classifier"],
    "distilbert": ["pre_classifier", "classifier"],
    "mpnet": ["classifier"],
    "llama": ["score"],
    "qwen2": ["score"],
    "roberta": ["classifier"],
    "gpt2": ["score"],
    "gemma": ["score"],
    "qwen3": ["score"],
}


@pytest.fixture
def exported(backbone_of, tools, tmp_path):
    """A function that exports a random adapter of a kind of model."""

    def export(kind, task=tools.classify, layers=None):
        backbone = backbone_of(kind)
        layers = layers or tools.layers(backbone)
        head = tools.head(backbone, 3) if task.kind == "classification" else {}
        folder = tmp_path / "adapters" / "client-1"
        export_adapter(
            folder,
            backbone=backbone,
            task=task,
            limits=Limits(24, 8),
            layers=layers,
            alpha=ALPHA,
            head=head,
            card=CARD,
        )
        return folder, layers, head

    return export


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_plain_peft_gives_the_same_class_logits(kind, exported, backbone_of, checkpoint, tools):
    folder, layers, head = exported(kind)
    backbone = backbone_of(kind)
    inputs = backbone.tokenize(tools.classify, tools.pairs, 24)
    with tools.adapted(backbone, layers, ALPHA):
        ours = tools.logits(backbone, inputs, head)
    base = AutoModelForSequenceClassification.from_pretrained(checkpoint(kind), num_labels=3)
    before = tools.whole(base.eval(), backbone, inputs)
    model = PeftModel.from_pretrained(base, folder).eval()
    theirs = tools.whole(model, backbone, inputs)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert (theirs - before).abs().max() > 0.1
    adapted = {name for name, module in model.named_modules() if hasattr(module, "lora_A")}
    start = f"base_model.model.{backbone.family.prefix}."
    assert adapted == {start + name for name in layers}
    assert (
        json.loads((folder / "adapter_config.json").read_text())["modules_to_save"]
        == (MODULES[kind])
    )


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma", "gpt2"])
def test_plain_peft_gives_the_same_vocabulary_logits(
    kind, exported, backbone_of, checkpoint, tools
):
    folder, layers, _ = exported(kind, tools.answer)
    backbone = backbone_of(kind)
    inputs = backbone.tokenize(tools.answer, tools.questions, 32)
    with tools.adapted(backbone, layers, ALPHA):
        ours = backbone.vocabulary_logits(tools.hidden(backbone, inputs))[inputs.mask]
        text = backbone.generate(["hello"], 5)
    base = AutoModelForCausalLM.from_pretrained(checkpoint(kind))
    model = PeftModel.from_pretrained(base, folder).eval()
    theirs = tools.whole(model, backbone, inputs)[inputs.mask]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    ids = torch.tensor([[1, *backbone.tokenizer("hello", add_special_tokens=False).input_ids]])
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5)
    new = out[:, ids.shape[1] :]
    assert backbone.tokenizer.batch_decode(new, skip_special_tokens=True) == text


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_what_is_written_is_read_back(kind, exported, backbone_of, tools):
    folder, layers, head = exported(kind)
    adapter = load_adapter(folder)
    assert adapter.alpha == ALPHA
    assert adapter.task == tools.classify
    assert adapter.layers.keys() == layers.keys()
    for name, (a, b) in layers.items():
        assert torch.equal(adapter.layers[name][0], a)
        assert torch.equal(adapter.layers[name][1], b)
    assert adapter.head.keys() == head.keys()
    assert all(torch.equal(adapter.head[name], head[name]) for name in head)
    assert adapter.meta["id2label"] == {"0": "bad", "1": "so-so", "2": "good"}
    check_base(adapter, backbone_of(kind))


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_merged_model_gives_the_same_class_logits(kind, exported, backbone_of, tools, tmp_path):
    folder, layers, head = exported(kind)
    backbone = backbone_of(kind)
    before = backbone.fingerprint()
    merge_adapter(tmp_path / "merged", backbone=backbone, adapter=load_adapter(folder))
    inputs = backbone.tokenize(tools.classify, tools.pairs, 24)
    with tools.adapted(backbone, layers, ALPHA):
        ours = tools.logits(backbone, inputs, head)
    model, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "merged", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    # Merging rounds W + BA to float32 once more than adding BA x to W x does.
    torch.testing.assert_close(ours, tools.whole(model.eval(), backbone, inputs), atol=5e-5, rtol=0)
    assert model.config.id2label == {0: "bad", 1: "so-so", 2: "good"}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer("a  b").input_ids == backbone.tokenizer("a  b").input_ids
    assert backbone.fingerprint() == before


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma", "gpt2"])
def test_a_merged_causal_model_loads_as_a_backbone(kind, exported, backbone_of, tools, tmp_path):
    folder, layers, _ = exported(kind, tools.answer)
    backbone = backbone_of(kind)
    merge_adapter(tmp_path / "merged", backbone=backbone, adapter=load_adapter(folder))
    merged = load_backbone(str(tmp_path / "merged"))
    with tools.adapted(backbone, layers, ALPHA):
        text = backbone.generate(["hello", "you there"], 5)
    assert merged.generate(["hello", "you there"], 5) == text


def test_ranks_and_scale_are_those_of_each_module(exported, checkpoint):
    folder, layers, _ = exported("bert")
    config = json.loads((folder / "adapter_config.json").read_text())
    ranks = {f"bert.{name}": pair[0].shape[0] for name, pair in layers.items()}
    assert config["r"] == 4
    assert {name: config["rank_pattern"].get(name, 4) for name in ranks} == ranks
    assert config["target_modules"] == sorted(ranks)
    assert config["lora_alpha"] == 6
    assert config["task_type"] == "SEQ_CLS"
    assert config["base_model_name_or_path"] == str(checkpoint("bert")), "where loaders find it"


def test_modules_of_rank_zero_are_left_out(exported, backbone_of, tools):
    layers = tools.layers(backbone_of("bert"))
    name = next(iter(layers))
    a, b = layers[name]
    folder, *_ = exported("bert", layers=layers | {name: (a[:0], b[:, :0])})
    assert load_adapter(folder).layers.keys() == layers.keys() - {name}


def test_equal_adapters_are_equal_files(exported):
    folder, *_ = exported("bert")
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    exported("bert")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_files_are_readable_and_name_no_local_place(exported, backbone_of, tmp_path, checkpoint):
    folder, *_ = exported("llama")
    merge_adapter(tmp_path / "merged", backbone=backbone_of("llama"), adapter=load_adapter(folder))
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "atlas.json",
    }
    for path in [*folder.iterdir(), *(tmp_path / "merged").iterdir()]:
        if path.name == "adapter_config.json":
            continue  # a base model that is a folder of this machine is found there alone
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        for place in (tmp_path, checkpoint("llama").parent, Path.cwd(), Path.home()):
            assert os.fsencode(place) not in path.read_bytes() or place == Path("/")
    assert not list(folder.parent.glob(".*"))


def test_the_card_says_what_it_is(exported):
    text = (exported("llama")[0] / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: peft\n")
    assert "| base model | `llama` |" in text
    assert "| labels | bad, so-so, good |" in text
    assert "| metrics: accuracy | 0.9123 |" in text
    assert "| client | a\\|b |" in text
    assert "| data | me |" in text
    assert "num_labels=3" in text
    assert "pad_token_id=0" in text


def test_the_code_on_the_card_runs(exported, checkpoint, monkeypatch):
    folder, *_ = exported("bert")
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(checkpoint("bert").parent)
    scope = {}
    exec(code.replace("this-folder", str(folder)), scope)
    assert scope["model"].config.id2label == {0: "bad", 1: "so-so", 2: "good"}


def test_an_interrupted_export_leaves_the_earlier_one(exported, monkeypatch):
    folder, *_ = exported("bert")
    before = (folder / "adapter_model.safetensors").read_bytes()

    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("atlas.backbones.export.write_card", fail)
    with pytest.raises(KeyboardInterrupt):
        exported("bert")
    assert (folder / "adapter_model.safetensors").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_other_peoples_folders_are_left_alone(backbone_of, tools, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    backbone = backbone_of("bert")
    with pytest.raises(InputError, match="holds other files"):
        export_adapter(
            tmp_path / "mine",
            backbone=backbone,
            task=tools.classify,
            limits=Limits(24, 8),
            layers=tools.layers(backbone),
            alpha=1.0,
            head=tools.head(backbone, 3),
            card={},
        )
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_what_does_not_fit_is_not_written(backbone_of, tools, tmp_path):
    backbone = backbone_of("bert")
    good, head = tools.layers(backbone), tools.head(backbone, 3)
    name, (a, b) = next(iter(good.items()))
    cases = [
        ({"encoder.layer.9.output.dense": (a, b)}, head, "is not a linear module of bert"),
        ({name: (a[:, :-1], b)}, head, "should be"),
        ({name: (a, b[:, :0])}, head, "should be"),
        ({}, head, "nothing to write"),
        (good, {}, "the head of 'mood' should be"),
        (good, tools.head(backbone, 2), "the head of 'mood' should be"),
    ]
    for layers, tensors, message in cases:
        with pytest.raises(InputError, match=message):
            export_adapter(
                tmp_path / "out",
                backbone=backbone,
                task=tools.classify,
                limits=Limits(24, 8),
                layers=layers,
                alpha=1.0,
                head=tensors,
                card={},
            )
    assert not (tmp_path / "out").exists()


def test_damaged_exports_are_refused(exported, tmp_path):
    folder, *_ = exported("bert")
    weights, original = folder / "adapter_model.safetensors", {}
    for path in folder.iterdir():
        original[path] = path.read_bytes()
    tensors = load_file(weights)
    name = next(key for key in tensors if "lora_A" in key)

    def changed(entries):
        save_file(entries, weights)

    damages = [
        (lambda: weights.write_bytes(original[weights][:50]), "cannot be read"),
        (weights.unlink, "cannot be read"),
        (lambda: changed({k: v for k, v in tensors.items() if k != name}), "missing or unknown"),
        (lambda: changed(tensors | {"surplus": torch.zeros(1)}), "missing or unknown"),
        (lambda: changed(tensors | {name: torch.zeros(9, 16)}), "should have rank"),
        ((folder / "atlas.json").unlink, "cannot be read"),
        (lambda: (folder / "atlas.json").write_text("{}"), "is not an exported adapter"),
        (lambda: (folder / "adapter_config.json").write_text("[]"), "should hold a JSON object"),
        (lambda: (folder / "adapter_config.json").write_text("{}"), "is not an exported adapter"),
    ]
    for damage, message in damages:
        damage()
        with pytest.raises(InputError, match=message):
            load_adapter(folder)
        for path, data in original.items():
            path.write_bytes(data)
    load_adapter(folder)


def test_another_base_model_is_refused(exported, backbone_of, tmp_path, checkpoint):
    adapter = load_adapter(exported("bert")[0])
    for other in (backbone_of("llama"), backbone_of("bert-bare"), load_backbone("tiny")):
        with pytest.raises(InputError, match="the adapter was trained on 'bert'"):
            merge_adapter(tmp_path / "merged", backbone=other, adapter=adapter)
    check_base(adapter, load_backbone(str(checkpoint("bert")), dtype=torch.float64))


def test_minilm_exports_name_the_public_model(tools, tmp_path):
    backbone = load_backbone("minilm")
    names = backbone.select(5, ["query", "value"])
    layers = {name: pair for name, pair in tools.layers(backbone).items() if name in names}
    head = tools.head(backbone, 3)
    export_adapter(
        tmp_path / "out",
        backbone=backbone,
        task=tools.classify,
        limits=Limits(24, 8),
        layers=layers,
        alpha=ALPHA,
        head=head,
        card={},
    )
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "sentence-transformers/all-MiniLM-L6-v2"
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    config = copy.deepcopy(backbone.config)
    config.num_labels = 3
    base = BertForSequenceClassification(config).eval()
    base.bert.load_state_dict(backbone.body.state_dict())
    model = PeftModel.from_pretrained(base, tmp_path / "out").eval()
    with torch.no_grad(), tools.adapted(backbone, layers, ALPHA):
        ours = tools.logits(backbone, inputs, head)
    theirs = tools.whole(model, backbone, inputs)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
