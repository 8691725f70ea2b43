"""What is asked for, and that no input tells it."""

import numpy as np
import pytest
import torch

from atlas.data.arithmetic import ArithmeticTask
from atlas.data.episodes import EpisodeStreams
from atlas.data.masked_words import NO_WORD, commonest_share, mask_words, whole_words
from atlas.data.sums import SumLines, TextAndSums, symbols
from atlas.data.text import TextLines, TextPart, TokenText
from atlas.memory.training.episode_batches import ARITHMETIC, WORDS
from atlas.memory.training.losses import IGNORED

MASK, PAD, FIRST_SYMBOL = 60, 61, 62
TASK = ArithmeticTask(modulus=7, operations=("add", "divide"), fraction=0.5)
TOKENS = tuple(range(FIRST_SYMBOL, FIRST_SYMBOL + len(symbols(7))))


def parts(size, seed):
    """Words of one to three tokens with gaps; every token says which word it is of."""
    draw = np.random.default_rng(seed)
    words, number = [], 0
    while len(words) < size:
        words += [number] * int(draw.integers(1, 4)) + [NO_WORD] * int(draw.integers(0, 2))
        number += 1
    words = np.array(words[:size])
    ids = np.where(words == NO_WORD, 0, 1 + draw.integers(0, 59, size=size))
    return TextPart(ids, words, 3 * size)


TEXT = TokenText(
    {"train": parts(900, 0), "validation": parts(300, 1), "test": parts(300, 2)},
    FIRST_SYMBOL + len(TOKENS),
    "by hand",
)


def streams(share=0.5, **changes):
    own = {
        "text": TEXT, "sums": SumLines(TASK, TOKENS, MASK, 23), "share": share, "length": 23,
        "batches": 6, "masked": 0.3, "mask": MASK, "seed": 0,
    }  # fmt: skip
    return EpisodeStreams(**{**own, **changes})


def test_edges_cut_no_word_in_two():
    words = np.array([[4, 4, 5, 5, NO_WORD, 6, 6, 6], [NO_WORD, 4, 4, 5, 6, 7, 7, NO_WORD]])
    assert whole_words(words).tolist() == [[-1, 5, 5, -1, -1, -1], [4, 4, 5, 6, 7, 7]]


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_masks_hide_whole_words_and_nothing_else(share):
    words = np.array([[3, 3, -1, 4, 5, 5, 5, -1, 6], [-1, -1, -1, -1, -1, -1, -1, -1, -1]])
    ids = np.where(words == NO_WORD, PAD, 10 + words)
    masked, questions = mask_words(ids, words, share, MASK, np.random.default_rng(0))
    asked = questions[0][questions[0] >= 0]
    assert len(set(asked.tolist())) == max(1, round(share * 4))
    for row in range(2):
        hidden = set(words[row][questions[row] >= 0].tolist())
        assert NO_WORD not in hidden, "padding and special tokens are never hidden"
        for place in range(9):
            assert (masked[row, place] == MASK) == (words[row, place] in hidden)
            if words[row, place] not in hidden:
                assert masked[row, place] == ids[row, place]
    assert (questions[1] == NO_WORD).all()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_no_input_of_retrieval_holds_what_is_asked_for(share):
    for step in range(12):
        for batch in streams(share).training(step, 5):
            asked = batch.retrieval.targets != IGNORED
            assert torch.equal(asked, batch.questions >= 0) and bool(asked.any())
            assert (batch.retrieval.ids[asked] == MASK).all()
            assert torch.equal(batch.retrieval.targets[asked], batch.storage.ids[asked])
            assert torch.equal(batch.retrieval.ids[~asked], batch.storage.ids[~asked])
            assert not (batch.storage.ids == MASK).any()


def test_storage_asks_for_the_next_token_of_text_and_the_answers_of_sums():
    own = streams()
    for batch in own.training(0, 5):
        asked = batch.storage.targets != IGNORED
        following = batch.storage.targets[:, :-1][asked[:, :-1]]
        assert torch.equal(following, batch.storage.ids[:, 1:][asked[:, :-1]])
        if batch.task == WORDS:
            assert asked.all()
        else:
            assert batch.storage.ids.shape == (5, 20)
            assert asked[:, 3::5].all() and int(asked.sum()) == 5 * 4


def test_a_stream_of_text_goes_on_where_it_ended():
    batches = [b for b in streams().training(3, 4) if b.task == WORDS]
    assert len(batches) >= 2
    for before, after in zip(batches[:-1], batches[1:], strict=True):
        assert torch.equal(before.storage.targets[:, -1], after.storage.ids[:, 0])


def test_tasks_are_drawn_evenly_and_episodes_are_addressed():
    own = streams()
    kinds = [b.task for step in range(60) for b in own.training(step, 2)]
    assert 0.4 < kinds.count(ARITHMETIC) / len(kinds) < 0.6
    one, two = own.training(4, 3), streams().training(4, 3)
    assert all(torch.equal(a.retrieval.ids, b.retrieval.ids) for a, b in zip(one, two, strict=True))
    other = own.training(5, 3)
    assert [b.storage.ids.tolist() for b in one] != [b.storage.ids.tolist() for b in other]
    assert {b.task for b in streams(0.0).training(0, 2)} == {WORDS}
    assert {b.task for b in streams(sums=None).training(0, 2)} == {WORDS}
    assert {b.task for b in streams(1.0).training(0, 2)} == {ARITHMETIC}


def equations(lines):
    rows = lines.reshape(-1, 5).tolist()
    return {tuple(row[:3]) for row in rows}


def test_held_out_sums_are_never_trained_on_and_those_asked_are_never_stored():
    own = streams(1.0)
    trained = set().union(
        *(equations(b.storage.ids) for step in range(30) for b in own.training(step, 8))
    )
    tested = [b for part in ("validation", "test") for b in own.held_out(part, 40)]
    stored = set().union(*(equations(b.storage.ids) for b in tested))
    asked = equations(own.sums.encode(own.sums.asked))
    assert trained and stored and asked
    assert not trained & stored and not asked & (trained | stored)
    every = len(TASK.pairs("add")) + len(TASK.pairs("divide"))
    assert len(own.sums.asked) + len(own.sums.stored) + len(own.sums.trained) == every


def test_sums_are_right():
    rows = SumLines(TASK, TOKENS, MASK, 23).encode(TASK.training()) - FIRST_SYMBOL
    _, signs, _, equals, _ = rows.unbind(1)
    assert set(signs.tolist()) == {7, 10} and set(equals.tolist()) == {11}
    for left, sign, right, _, found in rows.tolist():
        assert (left + right) % 7 == found if sign == 7 else (found * right) % 7 == left


def test_the_commonest_word_is_found_by_its_tokens():
    ids = np.array([1, 2, 9, 1, 2, 9, 1, 9, 1, 2])
    words = np.array([0, 0, -1, 1, 1, -1, 2, -1, 3, 3])
    others = (np.array([1, 2, 1, 9, 1, 2]), np.array([0, 0, 1, -1, 2, 2]))
    assert commonest_share((ids, words), others) == pytest.approx(2 / 3)


def test_text_and_sums_of_next_tokens():
    lines = TextLines(TEXT, 23, 0)
    sums = SumLines(TASK, TOKENS, MASK, 23)
    both = TextAndSums(lines, sums, 0.5)
    sizes = [both.training(step, 4).ids.shape[1] for step in range(60)]
    assert 15 < sizes.count(20) < 45 and set(sizes) == {20, 23}
    assert torch.equal(both.held_out("test", 4).ids, lines.held_out("test", 4).ids)
    alone = TextAndSums(lines, sums, 1.0)
    assert alone.held_out("test", 8).ids.shape == (8, 4) and alone.chance == 1 / 7
    assert both.identity != alone.lines.identity
