"""Checkpoints: exact, readable after a kill at any point, never mixed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest
import torch

from atlas.errors import InputError
from atlas.runs import checkpoint as module
from atlas.runs.checkpoint import latest_round, save_round

CLIENTS = ("a", "b-1")


def save(rounds: Path, number: int) -> None:
    """Saves a round in which every part names its round."""
    tensors = {f"layer{i}": torch.full((50, 40), float(number)) for i in range(3)}
    blobs = dict.fromkeys(CLIENTS, b"%d" % number * 500)
    save_round(rounds, number, tensors=tensors, meta={"round": number}, blobs=blobs)


def check(rounds: Path) -> int:
    """Reads the newest round and returns the one number that all its parts name."""
    found = latest_round(rounds)
    assert found is not None
    numbers = {found.number, found.meta["round"]}
    for tensor in found.tensors.values():
        numbers |= set(tensor.unique().tolist())
    assert found.blobs == dict.fromkeys(CLIENTS, b"%d" % found.number * 500)
    assert len(numbers) == 1 and len(found.tensors) == 3
    return found.number


def names(rounds: Path) -> list[str]:
    return sorted(path.name for path in rounds.iterdir())


def in_child(work) -> int:
    """Runs `work` in a forked process and returns its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(3)
    return pid


def test_a_round_reads_back_exactly(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "half": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
        "double": torch.tensor(1 / 3, dtype=torch.float64),
        "grad": torch.ones(2, requires_grad=True),
        "view": shared.T,
        "same": shared,
        "again": shared,
        "none": torch.zeros(0, 4),
        "whole": torch.tensor([2**62]),
    }
    meta = {"round": 4, "seconds": 0.1 + 0.2, "nested": {"list": [1, None, "é"]}, "loss": 1e-320}
    save_round(tmp_path / "rounds", 4, tensors=tensors, meta=meta, blobs={"a": b"\0\xff", "b": b""})
    found = latest_round(tmp_path / "rounds")
    assert found is not None and found.number == 4
    assert found.meta == meta and found.blobs == {"a": b"\0\xff", "b": b""}
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name].nan_to_num(), tensor.detach().nan_to_num())


def test_nothing_saved_reads_as_none(tmp_path):
    assert latest_round(tmp_path / "rounds") is None
    (tmp_path / "rounds" / ".tmp-0001").mkdir(parents=True)
    (tmp_path / "rounds" / "notes").mkdir()
    assert latest_round(tmp_path / "rounds") is None


def test_an_empty_round_can_be_saved(tmp_path):
    save_round(tmp_path, 0, tensors={}, meta={}, blobs={})
    found = latest_round(tmp_path)
    assert found is not None and (found.tensors, found.meta, found.blobs) == ({}, {}, {})


def test_the_last_two_rounds_are_kept_and_files_are_readable_by_all(tmp_path):
    (tmp_path / ".tmp-0001").mkdir()
    (tmp_path / ".tmp-0001" / "state.safetensors").write_bytes(b"stale")
    for number in (0, 1, 2, 9999, 10000):
        save(tmp_path, number)
        assert check(tmp_path) == number
    assert names(tmp_path) == ["10000", "9999"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2 * (3 + len(CLIENTS))
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}


def test_rounds_after_the_one_saved_belong_to_an_abandoned_past(tmp_path):
    for number in (4, 5):
        save(tmp_path, number)
    shutil.copytree(tmp_path / "0005", tmp_path / "0006")
    save(tmp_path, 5)
    assert names(tmp_path) == ["0004", "0005"]
    assert check(tmp_path) == 5


@pytest.mark.parametrize("name", ["state.safetensors", "meta.json", "manifest.json", "blobs/a"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove", "grow"])
def test_a_damaged_round_falls_back_to_the_one_before(tmp_path, name, damage):
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "0002" / name
    data = path.read_bytes()
    middle = len(data) // 2
    if damage == "remove":
        path.unlink()
    else:
        flipped = data[:middle] + bytes([data[middle] ^ 0x80]) + data[middle + 1 :]
        changed = {"flip": flipped, "cut": data[:middle], "empty": b"", "grow": data + b"}"}
        path.write_bytes(changed[damage])
    assert check(tmp_path) == 1
    save(tmp_path, 2)
    assert check(tmp_path) == 2
    assert names(tmp_path) == ["0001", "0002"]


def test_parts_of_two_rounds_do_not_make_one(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    shutil.copy(tmp_path / "0001" / "state.safetensors", tmp_path / "0002" / "state.safetensors")
    assert check(tmp_path) == 1
    shutil.rmtree(tmp_path / "0002")
    shutil.copytree(tmp_path / "0001", tmp_path / "0002")
    assert check(tmp_path) == 1, "a copied round is not the round of its name"


def test_rounds_of_which_none_is_readable_are_an_error(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "0001" / "meta.json").write_text("{}")
    (tmp_path / "0002" / "manifest.json").unlink()
    with pytest.raises(InputError, match="no saved round is readable; 0002: .*; 0001: meta.json"):
        latest_round(tmp_path)


@pytest.mark.parametrize("manifest", ["[]", "3", "{}", '{"format": 1, "round": 1, "files": 3}'])
def test_a_strange_manifest_is_damage(tmp_path, manifest):
    save(tmp_path, 1)
    (tmp_path / "0001" / "manifest.json").write_text(manifest)
    with pytest.raises(InputError, match="no saved round is readable"):
        latest_round(tmp_path)


def test_a_manifest_cannot_name_files_outside(tmp_path):
    save(tmp_path / "rounds", 1)
    (tmp_path / "secret").write_bytes(b"x")
    path = tmp_path / "rounds" / "0001" / "manifest.json"
    for name in ("../../secret", "blobs/../../../secret", str(tmp_path / "secret")):
        manifest = json.loads(path.read_text())
        manifest["files"][name] = {"sha256": "", "size": 1}
        path.write_text(json.dumps(manifest))
        with pytest.raises(InputError, match="names a strange file"):
            latest_round(tmp_path / "rounds")


def test_bad_parts_are_refused_before_anything_is_lost(tmp_path):
    save(tmp_path, 1)
    for client in ("../a", "a/b", "", ".", "a\n"):
        with pytest.raises(InputError, match="client id"):
            save_round(tmp_path, 2, tensors={}, meta={}, blobs={client: b""})
    with pytest.raises(TypeError, match="would not read back equal"):
        save_round(tmp_path, 2, tensors={}, meta={"a": [{1: 2}]}, blobs={})
    with pytest.raises(TypeError):
        save_round(tmp_path, 2, tensors={}, meta={"a": {1, 2}}, blobs={})
    with pytest.raises(ValueError, match="round -1"):
        save_round(tmp_path, -1, tensors={}, meta={}, blobs={})
    assert check(tmp_path) == 1


@pytest.mark.parametrize("last", [3, 2], ids=["next", "again"])
def test_a_kill_between_any_two_steps_leaves_a_whole_round(tmp_path, monkeypatch, last):
    steps = {"count": 0, "fatal": 0}

    def counted(function):
        def step(*args, **named):
            steps["count"] += 1
            if steps["count"] == steps["fatal"]:
                os._exit(9)
            return function(*args, **named)

        return step

    for target, name in ((module, "write_synced"), (module, "sync_folder")):
        monkeypatch.setattr(target, name, counted(getattr(target, name)))
    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    monkeypatch.setattr(Path, "mkdir", counted(Path.mkdir))
    monkeypatch.setattr(os, "unlink", counted(os.unlink))
    monkeypatch.setattr(os, "rmdir", counted(os.rmdir))
    for number in (1, 2):
        save(tmp_path / "whole", number)
    steps["count"] = 0
    save(tmp_path / "whole", last)
    total = steps["count"]
    assert total > 15
    reached = set()
    for fatal in range(1, total + 1):
        steps["fatal"] = 0
        rounds = tmp_path / str(fatal)
        for number in (1, 2):
            save(rounds, number)
        steps.update(count=0, fatal=fatal)
        pid = in_child(lambda rounds=rounds: save(rounds, last))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        steps["fatal"] = 0
        reached.add(check(rounds))
        save(rounds, last)
        assert check(rounds) == last and names(rounds) == [f"{last - 1:04d}", f"{last:04d}"]
    assert reached == {last - 1, last}


def test_kill_9_at_random_moments(tmp_path):
    draw = random.Random()
    save(tmp_path, 0)
    last = 0

    def work():
        number = last
        while True:
            number += 1
            save(tmp_path, number)

    for _ in range(14):
        pid = in_child(work)
        time.sleep(draw.uniform(0.0, 0.08))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        now = check(tmp_path)
        assert now >= last
        last = now
    assert last > 0
    save(tmp_path, last + 1)
    assert names(tmp_path) == sorted(f"{number:04d}" for number in (last, last + 1))
