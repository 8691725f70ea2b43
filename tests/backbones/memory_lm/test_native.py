"""What users of transformers expect of a model: its Trainer, beams, cards, and clear refusals."""

import itertools
import re

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DynamicCache,
    Trainer,
    TrainingArguments,
)

from atlas.backbones.memory_lm import AtlasCache, AtlasForSequenceClassification, AtlasModel
from atlas.backbones.memory_lm.sizes import save_model
from atlas.errors import InputError
from tests.backbones.memory_lm.helpers import draw_ids, make_model, off


def lessons(count, length=17):
    """Texts of which every second token says the next one: a few steps halve the loss."""
    first = draw_ids(count, length, seed=4) % 20 + 3
    texts = torch.stack([first, first + 15], -1).flatten(1)
    return [{"input_ids": row, "labels": row} for row in texts]


@pytest.mark.parametrize("kind", ["gate", "moneta"])
def test_the_library_s_trainer_trains_saves_and_loads_it(kind, tmp_path):
    model = make_model(kind, torch.float32, initializer_range=0.1)
    settings = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=30, per_device_train_batch_size=8,
        learning_rate=0.03, logging_steps=10, save_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True, seed=3,
    )  # fmt: skip
    with torch.random.fork_rng():  # the library seeds the whole process
        trainer = Trainer(model, settings, train_dataset=lessons(64), eval_dataset=lessons(8))
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == sorted(losses, reverse=True)
    assert after < 0.75 * before
    trainer.save_model(str(tmp_path / "saved"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    ids = draw_ids()
    assert torch.equal(again(ids).logits, model.eval()(ids).logits)
    assert "An Atlas language model" in (tmp_path / "saved" / "README.md").read_text("utf-8")


def best_continuations(model, ids, new):
    """Every continuation with the sum of its log-probabilities, the likeliest first."""
    found = []
    for tail in itertools.product(range(model.config.vocab_size), repeat=new):
        whole = torch.cat([ids, torch.tensor([tail])], 1)
        with torch.no_grad():
            logs = model(whole).logits.log_softmax(-1)[0, ids.shape[1] - 1 : -1]
        found.append((float(logs.gather(1, torch.tensor(tail)[:, None]).sum()), tail))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("kind", ["gate", "omega", "levels", "moneta"])
@pytest.mark.parametrize(("beams", "new"), [(3, 2), (9, 3)])
def test_beams_that_hold_everything_find_the_best_continuations(kind, beams, new):
    """Three tokens: three beams hold all firsts, nine all pairs; so nothing can be overlooked."""
    model = make_model(kind, vocab_size=3, seed=1)
    ids = draw_ids(1, 9) % 3
    found = model.generate(
        ids, num_beams=beams, num_return_sequences=3, max_new_tokens=new, do_sample=False,
        length_penalty=0.0, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    wanted = best_continuations(model, ids, new)[:3]
    assert [tuple(row.tolist()) for row in found.sequences[:, ids.shape[1] :]] == [
        tail for _, tail in wanted
    ]
    assert off(found.sequences_scores, torch.tensor([score for score, _ in wanted])) < 1e-5


def test_beams_whose_states_stay_behind_are_wrong(monkeypatch):
    """The control: without the order of the states the scores are those of other texts."""
    model, ids = make_model(vocab_size=3, seed=1), draw_ids(1, 9) % 3
    settings = {"num_beams": 9, "num_return_sequences": 3, "max_new_tokens": 3, "do_sample": False}
    settings |= {"length_penalty": 0.0, "return_dict_in_generate": True, "output_scores": True}
    right = model.generate(ids, **settings).sequences_scores
    monkeypatch.setattr(AtlasCache, "reorder_cache", lambda self, beam_idx: None)
    assert off(model.generate(ids, **settings).sequences_scores, right) > 1e-3


def test_a_padded_row_leaves_the_state_of_the_row_alone():
    model = make_model("omega", pad_token_id=0)
    rows = [draw_ids(1, length, seed=length)[0] for length in (3, 11, 6)]
    ids, mask = torch.zeros(2, 3, 11, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, 11 - len(row) :], mask[i, 11 - len(row) :] = row, 1
    together = model(ids, attention_mask=mask).past_key_values
    for i, row in enumerate(rows):
        alone = model(row[None]).past_key_values
        for one, other in zip(together.states, alone.states, strict=True):
            found, wanted = one.layer.branch.memory, other.layer.branch.memory
            assert off(found.memory[i], wanted.memory[0]) < 1e-12
            assert off(found.momentum[i], wanted.momentum[0]) < 1e-12
            kept = min(len(row), wanted.keys.shape[2])  # before a text there are no keys
            assert off(found.keys[i, :, -kept:], wanted.keys[0, :, -kept:]) < 1e-12


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"assistant_model": make_model(seed=1)}, "assisted generation is not supported"),
        ({"prompt_lookup_num_tokens": 3}, "assisted generation is not supported"),
        ({"past_key_values": DynamicCache()}, "past_key_values: a DynamicCache; allowed: an Atlas"),
    ],
    ids=["assistant", "lookup", "cache"],
)
def test_what_would_unread_tokens_or_lose_the_memory_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        make_model().generate(draw_ids(1), max_new_tokens=4, do_sample=False, **settings)


def test_gguf_is_refused(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"gguf_file: m\.gguf; allowed: none"):
        type(model).from_pretrained(tmp_path, gguf_file="m.gguf")


def loaded_by_card(place):
    """What the card's own code loads."""
    (code,) = re.findall(
        r"```python\n(.*?)```", (place / "README.md").read_text("utf-8"), re.DOTALL
    )
    (auto,) = re.findall(r"import (Auto\w+)", code)
    found = {"AutoModel": AutoModel, "AutoModelForCausalLM": AutoModelForCausalLM}
    found["AutoModelForSequenceClassification"] = AutoModelForSequenceClassification
    return type(found[auto].from_pretrained(place)).__name__


def test_cards_tell_what_a_model_is_and_how_it_loads(tmp_path):
    model = make_model("moneta")
    save_model(model, tmp_path / "lm", {"accuracy": {"memory": 0.68515625}, "text": tmp_path / "a"})
    card = (tmp_path / "lm" / "README.md").read_text("utf-8")
    assert f"| parameters | {model.num_parameters():,} |" in card
    assert "bias lp, retention lq, architecture mlp" in card
    assert "| accuracy: memory | 0.6852 |" in card and str(tmp_path) not in card
    assert "padding before a text is refused" in card
    plain = make_model()
    plain.model.save_pretrained(tmp_path / "body")
    labelled = AtlasForSequenceClassification(plain.config)
    labelled.save_pretrained(tmp_path / "labels")
    assert loaded_by_card(tmp_path / "lm") == "AtlasForCausalLM"
    assert loaded_by_card(tmp_path / "body") == AtlasModel.__name__
    assert loaded_by_card(tmp_path / "labels") == "AtlasForSequenceClassification"
    assert "padded on the left" in (tmp_path / "body" / "README.md").read_text("utf-8")


def test_a_card_of_somebody_else_stays(tmp_path):
    (tmp_path / "README.md").write_text("# Mine\n", "utf-8")
    make_model().save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text("utf-8") == "# Mine\n"
    make_model().save_pretrained(tmp_path / "other")
    make_model("none").save_pretrained(tmp_path / "other")
    assert "none, attention alone" in (tmp_path / "other" / "README.md").read_text("utf-8")
