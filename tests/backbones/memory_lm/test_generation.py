"""Reading on from a state: generation, padding, beams, files."""

import pytest
import torch

from atlas.backbones.memory_lm import AtlasCache
from atlas.errors import InputError
from tests.backbones.memory_lm.helpers import KINDS, draw_ids, make_model, off

NEW = 6


def go_on(model, ids, **settings):
    with torch.no_grad():
        return model.generate(
            ids,
            max_new_tokens=NEW,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            **settings,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_generation_is_reading_the_whole_text(kind):
    model, ids = make_model(kind), draw_ids()
    found = go_on(model, ids)
    whole = model(found.sequences).logits[:, ids.shape[1] - 1 : -1]
    # Generation hands out its logits in single precision.
    assert off(torch.stack(found.logits, 1), whole.float()) < 1e-5
    assert torch.equal(found.sequences[:, ids.shape[1] :], whole.argmax(-1))
    assert isinstance(found.past_key_values, AtlasCache)
    assert found.past_key_values.get_seq_length() == ids.shape[1] + NEW - 1
    assert torch.equal(go_on(model, ids, use_cache=False).sequences, found.sequences)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_token_by_token_are_those_of_the_whole(kind):
    model, ids = make_model(kind), draw_ids()
    cache, found = AtlasCache(), []
    for t in range(ids.shape[1]):
        found.append(model(ids[:, t : t + 1], past_key_values=cache).logits)
    assert off(torch.cat(found, 1), model(ids).logits) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_and_model_go_on_identically(kind, tmp_path):
    model, ids, more = make_model(kind), draw_ids(), draw_ids(seed=3)
    cache = model(ids).past_key_values
    cache.save(tmp_path / "state.safetensors")
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model", dtype=torch.float64)
    read = AtlasCache.load(tmp_path / "state.safetensors", again)
    assert read.get_seq_length() == ids.shape[1]
    assert read.batch_size == 2
    found = again(more, past_key_values=read).logits
    assert torch.equal(found, model(more, past_key_values=cache).logits)
    assert off(found, model(more).logits) > 1e-3, "the state counts"


def test_an_unread_state_and_one_of_another_model(tmp_path):
    AtlasCache().save(tmp_path / "empty.safetensors")
    assert AtlasCache.load(tmp_path / "empty.safetensors", make_model()).get_seq_length() == 0
    make_model("none")(draw_ids()).past_key_values.save(tmp_path / "other.safetensors")
    make_model("levels")(draw_ids()).past_key_values.save(tmp_path / "more.safetensors")
    for name in ("other", "more"):
        with pytest.raises(InputError, match="another model"):
            AtlasCache.load(tmp_path / f"{name}.safetensors", make_model())


def test_generation_goes_on_from_a_given_state():
    model, ids = make_model(), draw_ids()
    whole = go_on(model, ids).sequences
    cache = AtlasCache()
    half = model.generate(ids, max_new_tokens=2, do_sample=False, past_key_values=cache)
    rest = model.generate(half, max_new_tokens=NEW - 2, do_sample=False, past_key_values=cache)
    assert torch.equal(rest, whole)
    pieces = go_on(model, ids, past_key_values=AtlasCache(), prefill_chunk_size=5)
    assert torch.equal(pieces.sequences, whole)


def test_new_tokens_alone_go_on_from_a_state_and_none_is_left_out():
    model, ids, new = make_model(), draw_ids(), draw_ids(length=5, seed=3)
    whole = go_on(model, torch.cat([ids, new], 1)).sequences[:, -NEW:]
    cache = model(ids).past_key_values
    with pytest.raises(ValueError, match="mask_for"):
        go_on(model, new, past_key_values=cache)
    found = go_on(model, new, past_key_values=cache, attention_mask=cache.mask_for(new))
    assert torch.equal(found.sequences[:, -NEW:], whole)


@pytest.mark.parametrize("kind", ["gate", "levels"])
def test_beams_take_their_states_with_them(kind):
    model, ids = make_model(kind), draw_ids()
    settings = {"num_beams": 3, "max_new_tokens": NEW, "do_sample": False}
    found = model.generate(ids, **settings)
    assert torch.equal(found, model.generate(ids, use_cache=False, **settings))


def padded(rows, *, left):
    longest = max(len(row) for row in rows)
    ids, mask = torch.zeros(2, len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), None) if left else slice(0, len(row))
        ids[i, place], mask[i, place] = row, 1
    return ids, mask


ROWS = [draw_ids(1, length, seed=length)[0] for length in (4, 9, 7)]


@pytest.mark.parametrize("kind", ["gate", "omega", "layer", "none", "projected"])
def test_prompts_padded_on_the_left_are_each_read_alone(kind):
    model = make_model(kind, pad_token_id=0)
    ids, mask = padded(ROWS, left=True)
    together = go_on(model, ids, attention_mask=mask).sequences[:, ids.shape[1] :]
    for row, found in zip(ROWS, together, strict=True):
        assert torch.equal(go_on(model, row[None]).sequences[0, len(row) :], found)
    logits = model(ids, attention_mask=mask).logits
    assert off(logits[0, -4:], model(ROWS[0][None]).logits[0]) < 1e-10


@pytest.mark.parametrize("kind", ["context", "chunk-start", "continuum", "levels"])
def test_padding_on_the_left_is_refused_where_it_would_count(kind):
    ids, mask = padded(ROWS, left=True)
    with pytest.raises(ValueError, match="pad on the right"):
        make_model(kind)(ids, attention_mask=mask)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_right_changes_nothing_but_ends_the_text(kind):
    model = make_model(kind)
    ids, mask = padded(ROWS, left=False)
    out = model(ids, attention_mask=mask)
    for i, row in enumerate(ROWS):
        assert off(out.logits[i, : len(row)], model(row[None]).logits[0]) < 1e-10
    with pytest.raises(ValueError, match="cannot go on"):
        model(ids[:, :1], past_key_values=out.past_key_values)


def test_other_padding_is_refused():
    model, ids = make_model(), draw_ids()
    hole = torch.ones_like(ids)
    hole[0, 5] = 0
    with pytest.raises(ValueError, match="inside"):
        model(ids, attention_mask=hole)
    cache = model(ids).past_key_values
    late = torch.ones(2, 2 * ids.shape[1], dtype=torch.long)
    late[0, ids.shape[1]] = 0
    with pytest.raises(ValueError, match="has begun"):
        model(ids, attention_mask=late, past_key_values=cache)


def test_a_state_can_be_cut_chosen_from_and_restarted():
    model, ids, more = make_model(), draw_ids(), draw_ids(seed=3)
    cache = model(ids).past_key_values
    assert cache.states[0].layer.branch.memory.memory.requires_grad
    cache.detach()
    assert not cache.states[0].layer.branch.memory.memory.requires_grad
    wanted = model(more, past_key_values=AtlasCache(list(cache.states))).logits
    cache.restart(model, torch.tensor([False, True]))
    found = model(more, past_key_values=AtlasCache(list(cache.states))).logits
    assert off(found[0], wanted[0]) < 1e-12
    assert off(found[1], model(more).logits[1]) < 1e-12
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    cache.batch_select_indices(torch.tensor([0]))
    assert off(model(more[:1], past_key_values=cache).logits[0], wanted[0]) < 1e-12
    with pytest.raises(ValueError, match="unread"):
        cache.crop(-1)
    cache.reset()
    assert cache.get_seq_length() == 0
