"""Block by block gives what transformers' own models give."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from atlas.backbones.load import load_backbone
from atlas.federation.batching.backbone import Backbone
from tests.backbones.conftest import CAUSALS, ENCODERS


@pytest.mark.parametrize("kind", ENCODERS + CAUSALS)
@pytest.mark.parametrize("examples", ["singles", "pairs"])
def test_classification_logits_equal_transformers(kind, examples, backbone_of, checkpoint, tools):
    backbone = backbone_of(kind)
    inputs = backbone.tokenize(tools.classify, getattr(tools, examples), 24)
    assert not inputs.mask.all()
    head = tools.head(backbone, 3)
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint(kind), num_labels=3)
    tools.put(model.eval(), head)
    ours = tools.logits(backbone, inputs, head)
    assert ours.shape == (4, 3)
    assert ours.abs().max() > 0.1
    torch.testing.assert_close(ours, tools.whole(model, backbone, inputs), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", CAUSALS)
def test_vocabulary_logits_equal_transformers(kind, backbone_of, checkpoint, tools):
    backbone = backbone_of(kind)
    inputs = backbone.tokenize(tools.answer, tools.questions, 48)
    assert not inputs.mask.all()
    model = AutoModelForCausalLM.from_pretrained(checkpoint(kind)).eval()
    ours = backbone.vocabulary_logits(tools.hidden(backbone, inputs))
    theirs = tools.whole(model, backbone, inputs)
    torch.testing.assert_close(ours[inputs.mask], theirs[inputs.mask], atol=1e-5, rtol=0)


def test_the_window_of_sliding_models_is_felt(backbone_of, tools):
    backbone = backbone_of("mistral")
    far = backbone.tokenize(tools.classify, tools.singles[:1], 24)
    hidden = backbone.embed(far)
    mask = backbone.context(hidden, far.mask).masks["sliding_attention"]
    assert not mask[0, 0, 20, 5]
    assert mask[0, 0, 20, 19]


@pytest.mark.parametrize("kind", [*ENCODERS, "llama", "gemma", "gpt2"])
def test_a_row_does_not_depend_on_its_neighbours(kind, backbone_of, tools):
    backbone = backbone_of(kind)
    head = tools.head(backbone, 3)
    together = tools.logits(backbone, backbone.tokenize(tools.classify, tools.singles, 24), head)
    alone = tools.logits(backbone, backbone.tokenize(tools.classify, tools.singles[1:2], 24), head)
    torch.testing.assert_close(together[1:2], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [*ENCODERS, "llama", "gemma", "gpt2"])
def test_frozen_in_eval_mode_and_unchanged_by_training_around_it(kind, backbone_of, tools):
    backbone = backbone_of(kind)
    before = backbone.fingerprint()
    assert not backbone.model.training
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    head = {k: v.requires_grad_() for k, v in tools.head(backbone, 3).items()}
    layers = tools.layers(backbone)
    factors = [factor.requires_grad_() for pair in layers.values() for factor in pair]
    with tools.adapted(backbone, layers, 8.0):
        tools.logits(backbone, inputs, head).square().sum().backward()
    assert all(tensor.grad.abs().sum() > 0 for tensor in [*factors, *head.values()])
    assert backbone.fingerprint() == before
    first, second = (tools.logits(backbone, inputs, head) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [*ENCODERS, "llama", "gemma", "gpt2"])
def test_other_precisions(kind, dtype, checkpoint, backbone_of, tools):
    backbone, usual = load_backbone(str(checkpoint(kind)), dtype=dtype), backbone_of(kind)
    assert {parameter.dtype for parameter in backbone.model.parameters()} == {dtype}
    inputs = usual.tokenize(tools.classify, tools.singles, 24)
    ours, theirs = tools.hidden(backbone, inputs), tools.hidden(usual, inputs)
    assert ours.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float64 else 0.3
    torch.testing.assert_close(
        ours[inputs.mask].float(), theirs[inputs.mask], atol=tolerance, rtol=0
    )


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma", "gpt2"])
def test_generation_equals_transformers(kind, backbone_of, checkpoint):
    backbone = backbone_of(kind)
    model = AutoModelForCausalLM.from_pretrained(checkpoint(kind)).eval()
    prompts = ["once upon a time", "hi", ""]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([[1, *backbone.tokenizer(prompt, add_special_tokens=False).input_ids]])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=9)
        expected.append(backbone.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    assert backbone.generate(prompts, 9) == expected
    assert any(expected)


def test_a_checkpoints_stop_tokens_count_and_its_sampling_does_not(
    backbone_of, checkpoint, tmp_path
):
    plain = backbone_of("llama").generate(["hi"], 9)
    first = backbone_of("llama").tokenizer(plain[0], add_special_tokens=False).input_ids[0]
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "model")
    settings = {"repetition_penalty": 9.0, "do_sample": True, "temperature": 5.0}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert load_backbone(str(folder)).generate(["hi"], 9) == plain
    other = shutil.copytree(checkpoint("llama"), tmp_path / "other")
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, first]}))
    assert load_backbone(str(other)).generate(["hi"], 9) == [""]


def test_generation_runs_through_adapters(backbone_of, tools):
    backbone = backbone_of("llama")
    plain = backbone.generate(["one", "and two"], 6)
    layers, shapes = tools.layers(backbone), []
    watched = backbone.linears(0)["layers.0.self_attn.q_proj"]
    handle = watched.register_forward_hook(lambda m, inputs, out: shapes.append(inputs[0].shape))
    with tools.adapted(backbone, layers, 64.0):
        changed = backbone.generate(["one", "and two"], 6)
    handle.remove()
    assert changed != plain
    assert backbone.generate(["one", "and two"], 6) == plain
    assert all(len(shape) == 3 and shape[0] == 2 for shape in shapes)
    assert [shape[1] for shape in shapes][:2] == [8, 1]


def test_a_long_prompt_is_cut_from_the_left_when_generating(backbone_of):
    backbone = backbone_of("llama")
    assert backbone.max_positions == 64
    shapes = []
    handle = backbone.linears(0)["layers.0.self_attn.q_proj"].register_forward_hook(
        lambda m, inputs, out: shapes.append(inputs[0].shape[1])
    )
    backbone.generate(["x" * 500], 4)
    handle.remove()
    assert shapes[0] == 60
    assert backbone.generate([], 4) == []
    assert backbone.generate(["a"], 0) == [""]


def test_head_layers_are_those_of_the_classification_models(backbone_of):
    chains = {
        "bert": [("classifier", 0, True, "identity")],
        "bert-bare": [("bert.pooler.dense", 16, True, "tanh"), ("classifier", 0, True, "identity")],
        "distilbert": [("pre_classifier", 16, True, "relu"), ("classifier", 0, True, "identity")],
        "mpnet": [
            ("classifier.dense", 16, True, "tanh"),
            ("classifier.out_proj", 0, True, "identity"),
        ],
        "roberta": [
            ("classifier.dense", 16, True, "tanh"),
            ("classifier.out_proj", 0, True, "identity"),
        ],
        "gpt2": [("score", 0, False, "identity")],
        "gemma": [("score", 0, False, "identity")],
        "llama": [("score", 0, False, "identity")],
    }
    for kind, chain in chains.items():
        layers = backbone_of(kind).head_layers
        assert [(x.name, x.d_out, x.bias, x.activation) for x in layers] == chain
        assert {layer.d_in for layer in layers} == {16}


def test_it_is_a_backbone(backbone_of):
    backbone: Backbone = backbone_of("bert")
    assert (backbone.depth, backbone.width) == (2, 16)
    assert not backbone.can_generate
    assert backbone_of("llama").can_generate
