"""What examples become: padding, truncation, and where causal loss is taken."""

import json
import shutil

import pytest
import torch

from atlas.backbones.load import load_backbone
from atlas.backbones.tokenizer import (
    Specials,
    causal_row,
    pad_rows,
    prompt_row,
    row_mask,
    tokenizer_identity,
)
from atlas.errors import InputError
from atlas.federation.clients import Example

FULL = Specials(pad=0, bos=1, eos=2)
BARE = Specials(pad=9, bos=None, eos=None)


def test_only_the_answer_and_its_end_carry_loss(tools):
    backbone = load_backbone("tiny-causal")
    inputs = backbone.tokenize(tools.answer, tools.questions, 64)
    assert inputs.ids.shape == inputs.mask.shape == inputs.types.shape == inputs.targets.shape
    for row, example in enumerate(tools.questions):
        scored = inputs.targets[row] != -100
        expected = inputs.targets[row][scored]
        assert backbone.tokenizer.decode(expected) == example.answer + "</s>"
        length = int(inputs.mask[row].sum())
        read = backbone.tokenizer.decode(inputs.ids[row, :length])
        assert read == "<s>" + example.texts[0] + example.answer
        # Each target is the token that stands one place further on, the end after the last.
        assert torch.equal(inputs.ids[row, 1:length][scored[: length - 1]], expected[:-1])
        assert not scored[length:].any()


def test_causal_rows_by_hand():
    assert causal_row([5, 6], [7, 8], 10, FULL) == ([1, 5, 6, 7, 8], [-100, -100, 7, 8, 2])
    # One token short: the prompt loses its first token, the start and the answer stay.
    assert causal_row([5, 6], [7, 8], 4, FULL) == ([1, 6, 7, 8], [-100, 7, 8, 2])
    assert causal_row([5, 6], [7, 8], 3, FULL) == ([1, 7, 8], [7, 8, 2])
    # An answer that is too long by itself loses its end.
    assert causal_row([5, 6], [7, 8], 2, FULL) == ([1, 7], [7, 8])
    assert causal_row([5], [], 10, FULL) == ([1, 5], [-100, 2])
    assert causal_row([], [7], 10, FULL) == ([1, 7], [7, 2])
    # Without start and end tokens something still stands before the first answer token.
    assert causal_row([5, 6], [7, 8], 2, BARE) == ([6, 7], [7, 8])
    assert causal_row([], [7], 10, BARE) == ([9], [7])


@pytest.mark.parametrize("specials", [FULL, BARE])
def test_no_causal_row_is_longer_than_allowed(specials):
    for prompt in range(6):
        for answer in range(1, 6):
            for limit in range(1, 9):
                ids, targets = causal_row([5] * prompt, [7] * answer, limit, specials)
                assert 1 <= len(ids) == len(targets) <= limit
                assert targets[-1] in {7, 2}


def test_prompts_for_generation_are_cut_from_the_left():
    assert prompt_row([5, 6, 7], 9, FULL) == [1, 5, 6, 7]
    assert prompt_row([5, 6, 7], 3, FULL) == [1, 6, 7]
    assert prompt_row([5, 6, 7], 2, BARE) == [6, 7]
    assert prompt_row([], 2, BARE) == [9]


def test_padding_on_either_side():
    rows = [[1, 2, 3], [4], []]
    assert pad_rows(rows, 0).tolist() == [[1, 2, 3], [4, 0, 0], [0, 0, 0]]
    assert pad_rows(rows, 9, left=True).tolist() == [[1, 2, 3], [9, 9, 4], [9, 9, 9]]
    assert row_mask(rows, left=True).tolist()[1] == [False, False, True]
    assert pad_rows([], 0).shape == (0, 0)


def test_segments_are_cut_from_the_longer_one(tools):
    backbone = load_backbone("tiny")
    example = Example(("a" * 30, "bcd"), 0)
    inputs = backbone.tokenize(tools.classify, [example, Example(("x", "y"), 0)], 12)
    text = backbone.tokenizer.decode(inputs.ids[0])
    assert text == "[CLS]aaaaaa[SEP]bcd[SEP]"
    assert inputs.types[0].tolist() == [0] * 8 + [1] * 4
    assert inputs.mask[1].tolist() == [True] * 5 + [False] * 7
    assert inputs.ids[1, 5:].eq(0).all()
    assert inputs.targets is None


def test_padding_is_to_the_longest_given(tools):
    backbone = load_backbone("tiny")
    assert backbone.tokenize(tools.classify, [Example(("abc",), 0)], 40).ids.shape == (1, 5)
    assert backbone.tokenize(tools.classify, [], 40).ids.shape == (0, 0)
    assert load_backbone("tiny-causal").tokenize(tools.answer, [], 40).ids.shape == (0, 0)


def test_a_call_does_not_leave_its_limits_behind(tools):
    backbone = load_backbone("tiny-causal")
    backbone.tokenize(tools.classify, [Example(("abcdefgh",), 0)], 4)
    inputs = backbone.tokenize(tools.answer, [Example(("abcdefgh",), -1, "ij")], 40)
    assert int(inputs.mask.sum()) == 11
    backbone.tokenize(tools.classify, [Example(("abcdefgh",), 0)], 4)
    assert tokenizer_identity(backbone.tokenizer) == backbone.tokenizer_id
    assert backbone.tokenizer_id != load_backbone("tiny").tokenizer_id


def test_a_tokenizer_without_padding_token(checkpoint, tmp_path, tools):
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "model")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings["pad_token"]
    path.write_text(json.dumps(settings))
    backbone = load_backbone(str(folder))
    assert backbone.tokenizer.pad_token_id is None
    assert backbone.specials == Specials(pad=2, bos=1, eos=2)
    inputs = backbone.tokenize(tools.classify, tools.singles, 24)
    assert inputs.ids[~inputs.mask].eq(2).all()
    assert len(backbone.generate(["a", "longer"], 4)) == 2


def test_bad_requests(tools):
    tiny, causal = load_backbone("tiny"), load_backbone("tiny-causal")
    with pytest.raises(InputError, match="max_length 513: backbone tiny takes 1 to 512"):
        tiny.tokenize(tools.classify, tools.singles, 513)
    with pytest.raises(InputError, match="is an encoder: the causal task 'ask'"):
        tiny.tokenize(tools.answer, tools.questions, 16)
    with pytest.raises(InputError, match="is an encoder: generation"):
        tiny.generate(["a"], 3)
    with pytest.raises(InputError, match="is an encoder: language-model logits"):
        tiny.vocabulary_logits(torch.zeros(1, 32))
    with pytest.raises(InputError, match="one text or all have two"):
        tiny.tokenize(tools.classify, [tools.singles[0], tools.pairs[0]], 16)
    with pytest.raises(InputError, match="causal examples have one text"):
        causal.tokenize(tools.answer, [Example(("a", "b"), -1, "c")], 16)
    with pytest.raises(InputError, match="max_new_tokens 512"):
        causal.generate(["a"], 512)
