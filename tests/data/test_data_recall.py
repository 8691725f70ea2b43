"""Associative recall: every question has its answer, earlier in the sequence."""

import pytest
import torch

from atlas.data.recall import BLANK, IGNORED, RecallTask, draw_recall
from atlas.errors import InputError

TASKS = [RecallTask(), RecallTask(8192, 256, 64), RecallTask(11, 17, 4), RecallTask(4, 4, 1)]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_every_answer_is_the_value_paired_with_the_key(task):
    ids, targets, _ = draw_recall(task, 20, 0)
    assert ids.shape == targets.shape == (20, task.length)
    assert ids.dtype == targets.dtype == torch.int64
    for row, wanted in zip(ids.tolist(), targets.tolist(), strict=True):
        listed = row[: 2 * task.pairs]
        values = dict(zip(listed[::2], listed[1::2], strict=True))
        assert len(values) == len(set(values.values())) == task.pairs
        asked = {place: row[place] for place, t in enumerate(wanted) if t != IGNORED}
        assert sorted(asked.values()) == sorted(values)
        for place, key in asked.items():
            assert place >= 2 * task.pairs
            assert place % 2 == 0
            assert wanted[place] == values[key]
        gaps = set(range(2 * task.pairs, task.length)) - set(asked)
        assert all(row[place] == BLANK for place in gaps)


def test_keys_and_values_share_no_token():
    task = RecallTask(vocabulary=12, length=20, pairs=5)
    ids, targets, _ = draw_recall(task, 500, 1)
    assert set(ids[:, 0:10:2].unique().tolist()) == set(range(1, 6))
    assert set(ids[:, 1:10:2].unique().tolist()) == set(range(6, 12))
    assert set(targets[targets != IGNORED].tolist()) == set(range(6, 12))


def test_places_keys_and_answers_vary_evenly():
    task = RecallTask(vocabulary=64, length=32, pairs=4)
    ids, targets, _ = draw_recall(task, 4000, 2)
    asked = (targets != IGNORED).double().mean(0)
    assert torch.allclose(asked[8::2], torch.full((12,), 4 / 12, dtype=torch.float64), atol=0.04)
    assert not asked[9::2].any()
    shares = torch.bincount(ids[:, 0], minlength=32)[1:] / 4000
    assert torch.allclose(shares, torch.full((31,), 1 / 31), atol=0.015)
    pair = ids[:, 0] * 64 + ids[:, 1]
    assert len(pair.unique()) > 900  # of 992: keys say nothing about values


def test_draws_belong_to_their_address():
    task = RecallTask()
    one = draw_recall(task, 8, 3, "train", 5)
    again = draw_recall(task, 8, 3, "train", 5)
    assert torch.equal(one.ids, again.ids) and torch.equal(one.targets, again.targets)
    others = [(4, "train", 5), (3, "test", 5), (3, "train", 6)]
    for seed, *address in others:
        assert not torch.equal(one.ids, draw_recall(task, 8, seed, *address).ids)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"pairs": 0}, "task.pairs"),
        ({"vocabulary": 9, "pairs": 4}, "task.vocabulary"),
        ({"length": 15, "pairs": 4}, "task.length"),
    ],
)
def test_impossible_settings_are_refused(settings, name):
    with pytest.raises(InputError, match=rf"^{name}: \d+; allowed: at least"):
        RecallTask(**settings)


def test_no_sequences_are_refused():
    with pytest.raises(InputError, match="count"):
        draw_recall(RecallTask(), 0, 0)
