"""A text: where it comes from, and its sequences."""

import json

import numpy as np
import pytest
import torch

from atlas.build.reading import Sequences, build_reading
from atlas.config.memory import MemoryConfig
from atlas.config.memory_task import HubTextSettings
from atlas.data.text import TextLines, TextPart, TokenText
from atlas.data.text_source import generated_text, hub_text, read_text_file, split_text
from atlas.errors import InputError

IDS = np.random.default_rng(0).integers(0, 50, size=2040)


def token_text(ids=IDS):
    cuts = {"train": (0, 1836), "validation": (1836, 1938), "test": (1938, 2040)}
    nothing = np.full(2040, -1)
    parts = {n: TextPart(ids[a:b], nothing[a:b], 2 * (b - a)) for n, (a, b) in cuts.items()}
    return TokenText(parts, 50, "by hand")


def place(row):
    """Where in the text a sequence begins, found anew."""
    row = np.array(row)
    return next(i for i in range(len(IDS)) if np.array_equal(IDS[i : i + len(row)], row))


def test_every_token_is_asked_for_the_next_one():
    lines: Sequences = TextLines(token_text(), 30, seed=0)
    found = lines.training(3, 5)
    assert found.ids.shape == found.targets.shape == (5, 30)
    for ids, targets in zip(found.ids.tolist(), found.targets.tolist(), strict=True):
        start = place(ids)
        assert targets == IDS[start + 1 : start + 31].tolist()


def test_parts_do_not_overlap():
    lines = TextLines(token_text(), 30, seed=0)
    trained = [place(row) for step in range(20) for row in lines.training(step, 20).ids.tolist()]
    # 1836 tokens are trained on; a sequence and its last answer end before them.
    assert max(trained) <= 1836 - 31
    places = [place(row) for row in lines.held_out("validation", 9).ids.tolist()]
    assert min(places) >= 1836 and max(places) <= 1938 - 31 and len(set(places)) == 9
    assert lines.held_out("test", 9).ids[-1].tolist() == IDS[-31:-1].tolist()


def test_draws_are_addressed():
    one, two = (TextLines(token_text(), 30, seed=seed) for seed in (0, 1))
    assert torch.equal(one.training(1, 4).ids, one.training(1, 4).ids)
    assert not torch.equal(one.training(1, 4).ids, one.training(2, 4).ids)
    assert not torch.equal(one.training(1, 4).ids, two.training(1, 4).ids)
    assert torch.equal(one.held_out("test", 4).ids, two.held_out("test", 4).ids)


def test_chance_is_the_commonest_token_of_training():
    ids = np.array([1, 1, 2] * 680)
    assert TextLines(token_text(ids), 8, seed=0).chance == pytest.approx(2 / 3)
    ids[1938:] = 2
    assert TextLines(token_text(ids), 8, seed=0).chance == 0.0


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(InputError, match=r"task.length: 102 .*allowed: below 102"):
        TextLines(token_text(), 102, seed=0)
    assert TextLines(token_text(), 101, seed=0).held_out("validation", 2).ids.shape == (2, 101)


def test_identity_follows_the_text_and_its_tokenizer():
    other = IDS.copy()
    other[7] += 1
    text = token_text()
    assert token_text(other).identity != text.identity
    assert TokenText(text.parts, 50, "another").identity != text.identity
    assert text.bytes_per_token("test") == 2.0


def test_files_are_read_as_they_are(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes("a\r\né\n".encode())
    assert read_text_file(file) == "a\r\né\n"
    file.write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"text.txt: not text in UTF-8 \(byte 2\)"):
        read_text_file(file)
    with pytest.raises(InputError, match=r"task.file: .*none.txt: No such file.*ATLAS_DATA"):
        read_text_file(tmp_path / "none.txt")


def test_a_generated_text_is_as_long_as_wanted_and_grows_from_its_beginning():
    short, long = generated_text(5_000), generated_text(120_000)
    assert len(short) == 5_000 and len(long) == 120_000 and long.startswith(short)
    lines = long.splitlines()
    assert len(set(lines)) == len(lines)


def test_parts_are_the_whole():
    parts = split_text("".join(map(str, range(100))))
    assert "".join(parts.values()) == "".join(map(str, range(100)))
    assert [len(part) for part in parts.values()] == [171, 9, 10]


def test_a_data_set_is_read_as_a_stream_up_to_so_many_characters(tmp_path):
    pytest.importorskip("datasets")
    rows = [{"text": f"text number {i}", "id": i} for i in range(50)]
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    hub = HubTextSettings(name=str(tmp_path))
    found = hub_text(hub, 100)
    assert found.startswith("text number 0\n\ntext number 1\n\n") and len(found) == 100
    assert hub_text(hub, 10**6).endswith("text number 49")
    with pytest.raises(InputError, match=r"task.hub.field: body; .* has id, text"):
        hub_text(HubTextSettings(name=str(tmp_path), field="body"), 100)
    with pytest.raises(InputError, match=r"task.hub.name: .*cannot be read"):
        hub_text(HubTextSettings(name=str(tmp_path / "none")), 100)


@pytest.mark.parametrize("kind", ["bytes", "trained"])
def test_a_run_reads_what_its_settings_name(tmp_path, kind):
    file = tmp_path / "text.txt"
    file.write_text("the memory learns while it reads; " * 300)
    task = {"name": "text", "file": file, "length": 16, "tokenizer": {"kind": kind}}
    if kind == "trained":
        task["tokenizer"]["size"] = 270
    reading = build_reading(MemoryConfig.model_validate({"task": task}))
    ids = reading.text.held_out("test", 3).ids[0].tolist()
    assert reading.tokens.tokenizer.decode(ids) in file.read_text()
    assert reading.sequences.vocabulary == reading.tokens.size
