"""A text as sequences."""

import numpy as np
import pytest
import torch

from atlas.build.memory import Sequences
from atlas.data.text import TextLines
from atlas.errors import InputError

TEXT = np.random.default_rng(0).bytes(2040)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT)
    return file


def starts(lines):
    """Where in the text each sequence begins, found anew."""
    return [TEXT.find(bytes(row.tolist())) for row in lines.ids]


def test_every_byte_is_asked_for_the_next_one(path):
    lines: Sequences = TextLines(path, 30, seed=0)
    found = lines.training(3, 5)
    assert found.ids.shape == found.targets.shape == (5, 30)
    for ids, targets in zip(found.ids, found.targets, strict=True):
        place = TEXT.find(bytes(ids.tolist()))
        assert bytes(targets.tolist()) == TEXT[place + 1 : place + 31]


def test_parts_do_not_overlap(path):
    lines = TextLines(path, 30, seed=0)
    trained = [place for step in range(40) for place in starts(lines.training(step, 20))]
    # 1836 bytes are trained on; a sequence and its last answer end before them.
    assert max(trained) <= 1836 - 31
    places = {part: starts(lines.held_out(part, 9)) for part in ("validation", "test")}
    assert min(places["validation"]) >= 1836 and max(places["validation"]) <= 1938 - 31
    assert len(set(places["validation"])) == 9
    assert lines.held_out("test", 9).ids[-1].tolist() == list(TEXT[-31:-1])


def test_draws_are_addressed(path):
    one, two = (TextLines(path, 30, seed=seed) for seed in (0, 1))
    assert torch.equal(one.training(1, 4).ids, one.training(1, 4).ids)
    assert not torch.equal(one.training(1, 4).ids, one.training(2, 4).ids)
    assert not torch.equal(one.training(1, 4).ids, two.training(1, 4).ids)
    assert torch.equal(one.held_out("test", 4).ids, two.held_out("test", 4).ids)


def test_chance_is_the_commonest_byte_of_training(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(b"aab" * 600 + b"b" * 200)
    test = np.frombuffer(file.read_bytes(), np.uint8)[1900:]
    assert TextLines(file, 8, seed=0).chance == float((test == ord("a")).mean()) == 0.0
    file.write_bytes(b"aab" * 600)
    assert TextLines(file, 8, seed=0).chance == pytest.approx(2 / 3)


def test_what_cannot_be_read_is_refused(tmp_path, path):
    with pytest.raises(InputError, match=r"task.file: .*none.txt: No such file.*ATLAS_DATA"):
        TextLines(tmp_path / "none.txt", 8, seed=0)
    with pytest.raises(InputError, match="task.length: 102; allowed: below 102"):
        TextLines(path, 102, seed=0)
    assert TextLines(path, 101, seed=0).held_out("validation", 2).ids.shape == (2, 101)
