"""A backbone cut to its lowest blocks is a smaller model of its own, which shares its tensors."""

import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoModel, AutoModelForCausalLM

from atlas.backbones.export import export_adapter, load_adapter, merge_adapter
from atlas.backbones.load import build_tiny_causal, load_backbone
from atlas.config.load import load_config
from atlas.errors import InputError
from atlas.federation.training.evaluate import Limits
from tests.backbones.conftest import CAUSALS, ENCODERS, OTHER_CAUSALS
from tests.jobs.federation.test_exports import asked_alone, own_federation, saved_model

CAN_BE_CUT = [*ENCODERS, *CAUSALS, *OTHER_CAUSALS, "electra"]


@pytest.mark.parametrize("kind", CAN_BE_CUT)
def test_the_lowest_blocks_are_what_the_library_makes_of_them(kind, checkpoint, tools):
    whole, cut = (load_backbone(str(checkpoint(kind)) + end) for end in ("", "@1"))
    assert (whole.depth, cut.depth, cut.config.num_hidden_layers) == (2, 1, 1)
    auto = AutoModelForCausalLM if whole.can_generate else AutoModel
    few = {"num_hidden_layers": 1}
    if getattr(whole.config, "layer_types", None):
        few["layer_types"] = list(whole.config.layer_types[:1])
    plain = auto.from_pretrained(checkpoint(kind), **few).eval()
    task, some = (
        (tools.answer, tools.questions) if whole.can_generate else (tools.classify, tools.singles)
    )
    inputs = cut.tokenize(task, some, 24)
    ours = tools.hidden(cut, inputs)
    with torch.no_grad():
        given = {"input_ids": inputs.ids, "attention_mask": inputs.mask.long()}
        out = plain(**given)
    theirs = out.logits if whole.can_generate else out.last_hidden_state
    ours = cut.vocabulary_logits(ours) if whole.can_generate else ours
    torch.testing.assert_close(ours[inputs.mask], theirs[inputs.mask], atol=1e-5, rtol=0)
    assert not torch.allclose(tools.hidden(whole, inputs), tools.hidden(cut, inputs), atol=1e-3)


def test_both_share_their_tensors_and_the_whole_one_stays_whole(checkpoint):
    name = str(checkpoint("qwen2"))
    whole = load_backbone(name)
    before = whole.fingerprint()
    cut = load_backbone(f"{name}@1")
    assert load_backbone(f"{name}@1") is cut
    assert (cut.name, cut.lowest, whole.lowest) == ("qwen2@1", 1, None)
    own = {value.data_ptr() for value in whole.model.parameters()}
    assert {value.data_ptr() for value in cut.model.parameters()} < own
    assert whole.depth == 2 and whole.fingerprint() == before != cut.fingerprint()
    assert cut.stops == whole.stops and cut.location == whole.location
    assert sum(cut.size.blocks) < sum(whole.size.blocks)
    assert cut.size.embeddings == whole.size.embeddings


def test_a_cut_model_generates_and_has_twins():
    cut = load_backbone("tiny-causal@2")
    alone = load_backbone("tiny-causal")
    assert cut.generate(["hello there"], 6) != alone.generate(["hello there"], 6)
    assert [twin.depth for twin in cut.twins(2)] == [2, 2]


@pytest.mark.parametrize("blocks", ["0", "3", "12", "x", "", "-1", "1.5", "²"])
def test_a_number_of_blocks_that_is_none_is_refused(blocks):
    with pytest.raises(InputError, match="tiny-causal has 3 blocks; allowed to keep: @1 to @2"):
        load_backbone(f"tiny-causal@{blocks}")


def test_what_cannot_be_cut_is_refused(checkpoint):
    with pytest.raises(InputError, match="has no list of blocks"):
        load_backbone(str(checkpoint("albert")) + "@1")
    with pytest.raises(InputError, match="no such folder"):
        load_backbone("@2")
    with pytest.raises(InputError, match=r"allow_hub=true.*@N keeps its lowest N blocks"):
        load_backbone("some-owner/some-model@2")


def test_a_folder_whose_name_has_the_sign_is_that_folder(tmp_path):
    saved_model(tmp_path / "mine@2", build_tiny_causal)
    assert load_backbone(str(tmp_path / "mine@2")).depth == 3
    assert load_backbone(str(tmp_path / "mine@2@1")).depth == 1


def test_paths_in_settings_become_absolute_with_their_number(tmp_path, monkeypatch):
    saved_model(tmp_path / "mine", build_tiny_causal)
    monkeypatch.chdir(tmp_path)
    assert load_config("demo", ["backbone.name=mine@2"]).backbone.name == f"{tmp_path}/mine@2"
    assert load_config("demo", ["backbone.name=tiny@2"]).backbone.name == "tiny@2"


def test_plain_peft_loads_an_export_of_a_cut_model(checkpoint, tools, tmp_path):
    cut = load_backbone(str(checkpoint("qwen2-window")) + "@1")
    layers = tools.layers(cut)
    given = {"backbone": cut, "task": tools.answer, "limits": Limits(24, 8), "alpha": 6.0}
    export_adapter(tmp_path / "out", **given, layers=layers, head={}, card={})
    card = (tmp_path / "out" / "README.md").read_text()
    assert "its lowest 1 blocks alone" in card
    assert "num_hidden_layers=1, layer_types=['full_attention']" in card
    place = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(
        place["base_model_name_or_path"], num_hidden_layers=1, layer_types=["full_attention"]
    )
    model = PeftModel.from_pretrained(base, tmp_path / "out").eval()
    inputs = cut.tokenize(tools.answer, tools.questions, 24)
    with tools.adapted(cut, layers, 6.0):
        ours = cut.vocabulary_logits(tools.hidden(cut, inputs))
    theirs = tools.whole(model, cut, inputs)
    torch.testing.assert_close(ours[inputs.mask], theirs[inputs.mask], atol=1e-5, rtol=0)
    with pytest.raises(InputError, match="depth, weights differ"):
        whole = load_backbone(str(checkpoint("qwen2-window")))
        merge_adapter(tmp_path / "no", backbone=whole, adapter=load_adapter(tmp_path / "out"))
    merge_adapter(tmp_path / "yes", backbone=cut, adapter=load_adapter(tmp_path / "out"))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "yes").eval()
    theirs = tools.whole(merged, cut, inputs)
    torch.testing.assert_close(ours[inputs.mask], theirs[inputs.mask], atol=1e-5, rtol=0)


def test_the_card_of_a_cut_model_works_alone(tmp_path):
    model = saved_model(tmp_path / "model", build_tiny_causal)
    task = {"kind": "causal", "text": ["question"], "label": "answer", "metric": "exact_match"}
    records = [{"question": f"how much is {i}?", "answer": "yes"} for i in range(40)]
    folder, ours = own_federation(tmp_path, f"{model}@2", task, records, ["how much?"])
    assert asked_alone(folder, ["how much?"]) == ours["answer"] != ""
