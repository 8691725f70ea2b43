"""Clients' tensors on disk: read in part, renewed whole or not at all."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from atlas.errors import InputError
from atlas.federation.state.disk import Shelf, Spec

CLIENTS = [f"c{i}" for i in range(7)]
SPECS = {"lora_a/m": Spec((2, 3)), "head/x.bias": Spec((4,), "float64"), "ranks": Spec((), "int64")}


def values(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        "lora_a/m": torch.randn(7, 2, 3, generator=draw),
        "head/x.bias": torch.randn(7, 4, generator=draw, dtype=torch.float64),
        "ranks": torch.randint(1, 9, (7,), generator=draw),
    }


def fill(shelf, tensors):
    with shelf.renew(CLIENTS, SPECS, {"alpha": 2.0}) as made:
        for name, value in tensors.items():
            made.write(name, slice(None), value)


def held(shelf):
    latest = shelf.latest()
    return {name: latest.read(name, slice(None)) for name in latest.specs}


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.fixture
def shelf(tmp_path):
    shelf = Shelf(tmp_path / "shelf")
    fill(shelf, values())
    return shelf


def test_what_is_written_is_read(shelf):
    latest = shelf.latest()
    assert equal(held(shelf), values())
    assert latest.clients == tuple(CLIENTS)
    assert latest.specs == SPECS
    assert latest.facts == {"alpha": 2.0}
    assert latest.bytes == 7 * (6 * 4 + 4 * 8 + 8)


def test_some_clients_are_read_and_written(shelf):
    rows = np.array([4, 0, 5])
    assert torch.equal(shelf.latest().read("lora_a/m", rows), values()["lora_a/m"][rows])
    assert torch.equal(shelf.latest().read("lora_a/m", [3]), values()["lora_a/m"][[3]])
    new = torch.ones(3, 2, 3)
    with shelf.renew(CLIENTS, SPECS, {}) as made:
        made.write("lora_a/m", rows, new)
    found = shelf.latest().read("lora_a/m", slice(None))
    assert torch.equal(found[rows], new)
    assert not found[[1, 2, 3, 6]].any()


def test_what_is_read_is_a_copy(shelf):
    shelf.latest().read("lora_a/m", slice(None)).zero_()
    assert equal(held(shelf), values())


def test_a_new_generation_takes_the_place_of_the_old(shelf):
    fill(shelf, values(1))
    assert equal(held(shelf), values(1))
    assert len(list(shelf.folder.iterdir())) == 1


def test_until_it_is_whole_the_old_one_is_read(shelf):
    with shelf.renew(CLIENTS, SPECS, {}) as made:
        made.write("lora_a/m", slice(None), torch.ones(7, 2, 3))
        assert equal(held(shelf), values())
    assert not equal(held(shelf), values())


def test_a_failure_leaves_the_old_one_and_nothing_else(shelf):
    with pytest.raises(KeyError), shelf.renew(CLIENTS, SPECS, {}) as made:
        made.write("lora_a/m", slice(None), torch.ones(7, 2, 3))
        made.write("unknown", slice(None), torch.ones(7))
    assert equal(held(shelf), values())
    assert len(list(shelf.folder.iterdir())) == 1


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from atlas.federation import shelf as module
from atlas.federation.state.disk import Shelf
shelf, moment = Shelf(Path(sys.argv[1])), sys.argv[2]
end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
old = shelf.latest()
if moment == "synced":
    module._sync = end
if moment == "renamed":
    module.shutil.rmtree = end
with shelf.renew(old.clients, old.specs, old.facts) as made:
    made.write("lora_a/m", slice(None), torch.ones(7, 2, 3))
    if moment == "filled":
        end()
"""


@pytest.mark.parametrize("moment", ["filled", "synced", "renamed"])
def test_a_kill_leaves_the_old_one_or_the_new_one(shelf, moment):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(shelf.folder), moment], capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    new = {**{k: torch.zeros_like(v) for k, v in values().items()}, "lora_a/m": torch.ones(7, 2, 3)}
    assert equal(held(shelf), new if moment == "renamed" else values())
    assert len(list(shelf.folder.iterdir())) == 2  # what the dead process left
    fill(shelf, values(2))
    assert equal(held(shelf), values(2))
    assert len(list(shelf.folder.iterdir())) == 1


def change_header(shelf, change):
    path = shelf.latest().folder / "header.json"
    header = json.loads(path.read_text())
    change(header)
    path.write_text(json.dumps(header))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: os.truncate(s.latest().path("lora_a/m"), 20), "lora_a/m has 20 bytes"),
        (lambda s: s.latest().path("ranks").unlink(), "ranks is missing"),
        (lambda s: (s.latest().folder / "header.json").unlink(), "No such file"),
        (lambda s: (s.latest().folder / "header.json").write_text("{"), "not the header"),
        (lambda s: change_header(s, lambda h: h.pop("clients")), "not the header"),
        (lambda s: change_header(s, lambda h: h.update(format=9)), "format 9; allowed: 1"),
        (lambda s: change_header(s, lambda h: h["clients"].append("x")), "expected"),
        (
            lambda s: change_header(s, lambda h: h["tensors"]["ranks"].update(dtype="O")),
            "dtype 'O'",
        ),
        (lambda s: change_header(s, lambda h: h["tensors"]["ranks"].update(shape=[-1])), "shape"),
    ],
)
def test_a_damaged_shelf_is_refused_and_left_alone(shelf, spoil, words):
    spoil(shelf)
    before = sorted(shelf.folder.rglob("*"))
    with pytest.raises(InputError, match=words):
        shelf.latest()
    assert sorted(shelf.folder.rglob("*")) == before


def test_a_folder_without_a_shelf_is_refused(tmp_path):
    with pytest.raises(InputError, match="no shelf"):
        Shelf(tmp_path / "nowhere").latest()
    with pytest.raises(InputError, match="no shelf"):
        Shelf(tmp_path).latest()


def test_reading_some_clients_takes_the_memory_of_some(tmp_path):
    """Pages that were mapped to read a slab are not resident afterwards."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("the system does not tell")
    shelf = Shelf(tmp_path / "large")
    names = [str(i) for i in range(64)]
    with shelf.renew(names, {"x": Spec((1 << 18,))}, {}) as made:  # 64 MB
        for i in range(64):
            made.write("x", [i], torch.full((1, 1 << 18), float(i)))
    latest = shelf.latest()

    def resident():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    latest.read("x", [0])
    before = resident()
    for i in range(64):
        assert float(latest.read("x", [i])[0, -1]) == i
    assert resident() - before < 16e6
