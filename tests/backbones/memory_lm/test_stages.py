"""A trained model goes on with other chunk sizes: the same weights, another way to read."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from atlas.errors import InputError
from atlas.memory.layer.settings import Stage, stage_at
from tests.backbones.memory_lm.helpers import KINDS, draw_ids, make_model, off

FIRST, SECOND = STAGES = (Stage(8, (2, 3), until=0.9), Stage(6, (1, 2)))


def test_a_stage_changes_what_is_read_and_no_weight(tmp_path):
    model, ids = make_model("levels"), draw_ids()
    first = model(ids).logits
    parameters = dict(model.named_parameters())
    values = {name: value.detach().clone() for name, value in parameters.items()}
    model.set_chunks(stage_at(0.95, STAGES))
    second = model(ids).logits
    assert off(second, first) > 1e-4
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name], "an optimiser goes on"
        assert torch.equal(parameter, values[name])
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert [own["chunk"] for own in again.config.local_rules] == [1, 2]
    assert torch.equal(again(ids).logits, second)
    model.set_chunks(FIRST)
    assert torch.equal(model(ids).logits, first)


def test_a_saved_model_is_read_in_the_chunks_of_a_changed_config(tmp_path):
    model, ids = make_model("levels"), draw_ids()
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    config.set_chunks(SECOND)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, config=config, dtype=torch.float64)
    assert off(again(ids).logits, model(ids).logits) > 1e-4
    model.set_chunks(SECOND)
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_chunks_of_one_token_are_the_exact_rules_token_by_token():
    model, ids = make_model("levels"), draw_ids()
    rules = [{**rule, "gradient": "exact"} for rule in KINDS["levels"]["local_rules"]]
    exact = make_model("levels", rule={"chunk": 4}, local_rules=rules)
    exact.load_state_dict(model.state_dict())
    cache, wanted = None, []
    for t in range(ids.shape[1]):
        out = exact(ids[:, t : t + 1], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        wanted.append(out.logits)
    assert off(model(ids).logits, torch.cat(wanted, 1)) > 1e-4
    model.set_chunks(Stage(1, (1, 1)))
    assert off(model(ids).logits, torch.cat(wanted, 1)) < 1e-10


def test_an_adapted_model_changes_its_chunks_too():
    ids = draw_ids()
    wanted = make_model("levels")
    wanted.set_chunks(SECOND)
    tuned = get_peft_model(make_model("levels"), LoraConfig(r=2, target_modules=["q_proj"]))
    tuned.get_base_model().set_chunks(SECOND)
    assert off(tuned(input_ids=ids).logits, wanted(ids).logits) < 1e-12


@pytest.mark.parametrize("kind", ["gate", "levels"])
def test_a_stage_of_other_memories_is_refused_and_changes_nothing(kind):
    model, ids = make_model(kind), draw_ids()
    before, config = model(ids).logits, model.config.to_dict()
    with pytest.raises(InputError, match=r"local: chunks \[4\]; allowed: one for each of the"):
        model.set_chunks(Stage(8, (4,)))
    assert model.config.to_dict() == config
    assert torch.equal(model(ids).logits, before)
