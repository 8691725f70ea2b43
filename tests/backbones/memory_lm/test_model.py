"""The Atlas language model as a transformers model: sizes, files, training."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from atlas.backbones.memory_lm import AtlasConfig, AtlasForCausalLM, AtlasForSequenceClassification
from atlas.backbones.memory_lm.sizes import omega_300m, small, without_memory
from atlas.data.recall import RecallTask, draw_recall
from atlas.memory.layer.follow import momenta_of
from atlas.memory.layer.gates import Floors
from tests.backbones.memory_lm.helpers import KINDS, SMALL, draw_ids, make_model, off


def count(config):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AtlasForCausalLM(config).parameters())


def test_sizes():
    assert count(omega_300m()) == 389_491_904
    assert round(count(omega_300m()) / 1e6, 1) == 389.5
    assert 9e6 < count(small()) < 11e6
    for config in (small(), AtlasConfig(**SMALL)):
        alone = without_memory(config)
        assert alone.placement == "none"
        assert count(alone) == pytest.approx(count(config), rel=0.01)


def assert_fresh_memory(model):
    for block in model.model.layers:
        memory = block.mixer.memory
        starts = {
            name: float(gate.bias.detach().unique()) for name, gate in memory.gates.named_children()
        }
        assert starts == {"alpha": -4.0, "eta": 0.0, "theta": 1.0, "gamma": 1.0}
        assert all(0.01 < float(g.weight.detach().std()) < 0.03 for g in memory.gates.children())
        assert not memory.initial.any()
        assert not memory.local_initial.any()
        assert 0.2 < float(memory.convolution.weight.detach().std()) < 0.4


def test_a_fresh_memory_starts_where_it_should(tmp_path):
    local = {"local_rules": [{"window": 3}], "local_shard": 4}
    omega = {**SMALL, **KINDS["omega"], **local}
    assert_fresh_memory(AtlasForCausalLM(AtlasConfig(**omega)))
    window = make_model("none", torch.float32)
    window.save_pretrained(tmp_path)
    given = AutoModelForCausalLM.from_pretrained(tmp_path, config=AtlasConfig(**omega))
    assert_fresh_memory(given)
    own, taken = window.state_dict(), given.state_dict()
    assert all(torch.equal(taken[name], value) for name, value in own.items())


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_reloaded_models_are_the_same(kind, tmp_path):
    model = make_model(kind)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.to_diff_dict() == model.config.to_diff_dict()
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(again) is AtlasForCausalLM
    assert torch.equal(again(draw_ids()).logits, model(draw_ids()).logits)
    assert again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()


def test_embeddings_may_be_kept_apart(tmp_path):
    model = make_model(tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert again.lm_head.weight.data_ptr() != again.model.embed_tokens.weight.data_ptr()
    assert torch.equal(again(draw_ids()).logits, model(draw_ids()).logits)


def test_a_body_serves_a_classifier(tmp_path):
    model = make_model(pad_token_id=0)
    model.save_pretrained(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, num_labels=3, dtype=torch.float64
    ).eval()
    assert type(classifier) is AtlasForSequenceClassification
    ids = draw_ids()
    padded = torch.cat([ids, torch.zeros(2, 4, dtype=torch.long)], 1)
    assert classifier(ids).logits.shape == (2, 3)
    assert off(classifier(padded).logits, classifier(ids).logits) < 1e-12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 15}, "multiple"),
        ({"rule": {"chunk": 0}}, "chunk"),
        ({"rule": {"speed": 3}}, "speed"),
        ({"gate_floors": {"beta": 0.1}}, "beta"),
        ({"placement": "beside"}, "placement"),
        ({"local_shard": 4}, "local_shard: 4; allowed: a number with local_rules"),
        ({"local_rules": [{}]}, "local_shard: None; allowed"),
        (
            {"local_rules": [{}, {"speed": 3}], "local_shard": 4},
            r"local_rules\[1\]: speed; allowed",
        ),
        ({"local_rules": [{"chunk": 0}], "local_shard": 4}, r"local_rules\[0\].chunk: 0; allowed"),
        (
            {"local_rules": [{"window": 2}], "local_shard": 4},
            r"local_rules\[0\].window: 2; allowed",
        ),
    ],
)
def test_settings_of_no_model_are_refused(changes, message):
    with pytest.raises(Exception, match=message):
        AtlasConfig(**{**SMALL, **changes})


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_all_weights_with_and_without_checkpointing(kind):
    model, ids = make_model(kind).train(), draw_ids()
    found = []
    for prepare in (model.gradient_checkpointing_disable, model.gradient_checkpointing_enable):
        prepare()
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        assert float(gradient.abs().max()) > 1e-9, name
        assert off(found[1][name], gradient) < 1e-12, name


def test_checkpointed_blocks_carry_gradients_through_a_state():
    model, ids = make_model().train(), draw_ids()
    found = []
    for prepare in (model.gradient_checkpointing_disable, model.gradient_checkpointing_enable):
        prepare()
        model.zero_grad()
        cache = model(ids[:, :9], use_cache=True).past_key_values
        model(ids[:, 9:], past_key_values=cache).logits.square().sum().backward()
        found.append(model.model.layers[0].mixer.memory.k_proj.weight.grad.clone())
    assert off(*found) < 1e-10
    assert float(found[0].abs().max()) > 1e-6


def test_the_loss_is_that_of_the_next_token():
    model, ids = make_model(), draw_ids()
    out = model(ids, labels=ids)
    wanted = cross_entropy(out.logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
    assert off(out.loss, wanted) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_finite_and_near(kind):
    model = make_model(kind, torch.float32)
    exact = model(draw_ids()).logits.detach()
    half = model.to(torch.bfloat16)
    out = half(draw_ids(), labels=draw_ids())
    out.loss.backward()
    assert out.logits.dtype == torch.bfloat16
    assert all(bool(torch.isfinite(p.grad).all()) for p in half.parameters())
    # The cubes of Moneta's errors make more of what rounding does to a key.
    near = 0.5 if kind == "moneta" else 0.25
    assert off(out.logits.float(), exact) < near * float(exact.abs().max())
    if kind != "none":
        state = out.past_key_values.states[0].layer.branch.memory
        assert all(own.dtype == torch.float32 for own in momenta_of(state))


@pytest.mark.parametrize("kind", ["gate", "levels"])
def test_measures_are_there_when_asked_for(kind):
    model, ids = make_model(kind), draw_ids()
    assert model(ids).memory is None
    plain = model(ids, output_memory=True, output_hidden_states=True)
    assert len(plain.hidden_states) == 3
    assert {name.split("/")[0] for name in plain.memory} == {"layers.0", "layers.1"}
    assert all(math.isfinite(value) for value in plain.memory.values())
    held = model(ids, output_memory=True, floors=Floors(mix=0.9))
    assert held.memory["layers.1/gate.mix.mean"] > 0.9 > plain.memory["layers.1/gate.mix.mean"]
    assert off(held.logits, plain.logits) > 1e-3


@pytest.mark.parametrize("kind", ["gate", "levels"])
def test_lora_trains_on_it(kind):
    model = make_model(kind, torch.float32)
    frozen = {name: p.clone() for name, p in model.named_parameters()}
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    tuned = get_peft_model(model, LoraConfig(r=4, target_modules=names, task_type="CAUSAL_LM"))
    ids, losses = draw_ids(4), []
    optimiser = torch.optim.AdamW([p for p in tuned.parameters() if p.requires_grad], lr=0.02)
    for _ in range(15):
        loss = tuned(input_ids=ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    adapted = {n.split(".lora_B")[0] for n, _ in tuned.named_parameters() if "lora_B" in n}
    assert sum(".memory." in name for name in adapted) == 6
    kept = dict(tuned.get_base_model().named_parameters())
    for name, before in frozen.items():
        found = kept.get(name, kept.get(name.replace(".weight", ".base_layer.weight")))
        assert torch.equal(found, before), name
    assert tuned.generate(input_ids=ids, max_new_tokens=3, do_sample=False).shape == (4, 22)


def recall_accuracy(config, steps=80):
    """Accuracy on new sequences after a few seconds of training."""
    task = RecallTask(vocabulary=16, length=16, pairs=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AtlasForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    for step in range(steps):
        batch = draw_recall(task, 32, 0, "train", step)
        logits = model(batch.ids, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    batch = draw_recall(task, 256, 0, "test")
    with torch.no_grad():
        right = model(batch.ids).logits.argmax(-1) == batch.targets
    return float(right[batch.targets >= 0].float().mean())


def test_recall_needs_a_memory_that_learns_to_write():
    sizes = {"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 1, "attention_window": 3}
    sizes |= {"intermediate_size": 48, "initializer_range": 32**-0.5, "persistent_tokens": 1}
    config = AtlasConfig(**{**SMALL, **sizes})
    detached = AtlasConfig(**{**SMALL, **sizes, "memory_gradient": "detached"})
    assert recall_accuracy(config) > 0.95
    assert recall_accuracy(detached) < 0.8
    assert recall_accuracy(without_memory(config)) < 0.4
