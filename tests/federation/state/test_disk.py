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
from atlas.federation.state.disk import DiskState, Spec

CLIENTS = [f"c{i}" for i in range(7)]
SPECS = {"lora_a/m": Spec((2, 3)), "head/x.bias": Spec((4,), "float64"), "ranks": Spec((), "int64")}


def values(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        "lora_a/m": torch.randn(7, 2, 3, generator=draw),
        "head/x.bias": torch.randn(7, 4, generator=draw, dtype=torch.float64),
        "ranks": torch.randint(1, 9, (7,), generator=draw),
    }


def fill(state, tensors):
    with state.renew(CLIENTS, SPECS, {"alpha": 2.0}) as made:
        for name, value in tensors.items():
            made.write(name, slice(None), value)


def held(state):
    latest = state.latest()
    return {name: latest.read(name, slice(None)) for name in latest.specs}


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.fixture
def state(tmp_path):
    state = DiskState(tmp_path / "state")
    fill(state, values())
    return state


def test_what_is_written_is_read(state):
    latest = state.latest()
    assert equal(held(state), values())
    assert latest.clients == tuple(CLIENTS)
    assert latest.specs == SPECS
    assert latest.facts == {"alpha": 2.0}
    assert latest.bytes == 7 * (6 * 4 + 4 * 8 + 8)


def test_some_clients_are_read_and_written(state):
    rows = np.array([4, 0, 5])
    assert torch.equal(state.latest().read("lora_a/m", rows), values()["lora_a/m"][rows])
    assert torch.equal(state.latest().read("lora_a/m", [3]), values()["lora_a/m"][[3]])
    new = torch.ones(3, 2, 3)
    with state.renew(CLIENTS, SPECS, {}) as made:
        made.write("lora_a/m", rows, new)
    found = state.latest().read("lora_a/m", slice(None))
    assert torch.equal(found[rows], new)
    assert not found[[1, 2, 3, 6]].any()


def test_what_is_read_is_a_copy(state):
    state.latest().read("lora_a/m", slice(None)).zero_()
    assert equal(held(state), values())


def test_a_new_generation_takes_the_place_of_the_old(state):
    fill(state, values(1))
    assert equal(held(state), values(1))
    assert len(list(state.folder.iterdir())) == 1


def test_until_it_is_whole_the_old_one_is_read(state):
    with state.renew(CLIENTS, SPECS, {}) as made:
        made.write("lora_a/m", slice(None), torch.ones(7, 2, 3))
        assert equal(held(state), values())
    assert not equal(held(state), values())


def test_a_failure_leaves_the_old_one_and_nothing_else(state):
    with pytest.raises(KeyError), state.renew(CLIENTS, SPECS, {}) as made:
        made.write("lora_a/m", slice(None), torch.ones(7, 2, 3))
        made.write("unknown", slice(None), torch.ones(7))
    assert equal(held(state), values())
    assert len(list(state.folder.iterdir())) == 1


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from atlas.federation.state import disk as module
state, moment = module.DiskState(Path(sys.argv[1])), sys.argv[2]
end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
old = state.latest()
if moment == "synced":
    module._sync = end
if moment == "renamed":
    module.shutil.rmtree = end
with state.renew(old.clients, old.specs, old.facts) as made:
    made.write("lora_a/m", slice(None), torch.ones(7, 2, 3))
    if moment == "filled":
        end()
"""


@pytest.mark.parametrize("moment", ["filled", "synced", "renamed"])
def test_a_kill_leaves_the_old_one_or_the_new_one(state, moment):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(state.folder), moment], capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    new = {**{k: torch.zeros_like(v) for k, v in values().items()}, "lora_a/m": torch.ones(7, 2, 3)}
    assert equal(held(state), new if moment == "renamed" else values())
    assert len(list(state.folder.iterdir())) == 2  # what the dead process left
    fill(state, values(2))
    assert equal(held(state), values(2))
    assert len(list(state.folder.iterdir())) == 1


def change_header(state, change):
    path = state.latest().folder / "header.json"
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
def test_a_damaged_state_is_refused_and_left_alone(state, spoil, words):
    spoil(state)
    before = sorted(state.folder.rglob("*"))
    with pytest.raises(InputError, match=words):
        state.latest()
    assert sorted(state.folder.rglob("*")) == before


def test_a_folder_without_a_state_is_refused(tmp_path):
    with pytest.raises(InputError, match="no state of clients"):
        DiskState(tmp_path / "nowhere").latest()
    with pytest.raises(InputError, match="no state of clients"):
        DiskState(tmp_path).latest()


def test_reading_some_clients_takes_the_memory_of_some(tmp_path):
    """Pages that were mapped to read a slab are not resident afterwards."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("the system does not tell")
    state = DiskState(tmp_path / "large")
    names = [str(i) for i in range(64)]
    with state.renew(names, {"x": Spec((1 << 18,))}, {}) as made:  # 64 MB
        for i in range(64):
            made.write("x", [i], torch.full((1, 1 << 18), float(i)))
    latest = state.latest()

    def resident():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    latest.read("x", [0])
    before = resident()
    for i in range(64):
        assert float(latest.read("x", [i])[0, -1]) == i
    assert resident() - before < 16e6
