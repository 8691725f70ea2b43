"""Run folders: fresh names, containment, locks, atomic files."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import atlas
from atlas.errors import InputError
from atlas.runs.files import safe_child
from atlas.runs.folder import RunFolder, write_text_atomic

SOURCE = str(Path(atlas.__file__).parents[1])
HOLD = f"""
import sys
sys.path.insert(0, {SOURCE!r})
from pathlib import Path
from atlas.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_taken_name_gets_the_next_number(tmp_path):
    names = [RunFolder.create(tmp_path / "runs", "demo").path.name for _ in range(3)]
    assert names == ["demo", "demo-2", "demo-3"]
    (tmp_path / "runs" / "demo-4").write_text("a file, not a run")
    assert RunFolder.create(tmp_path / "runs", "demo").path.name == "demo-5"
    assert (tmp_path / "runs" / "demo-4").read_text() == "a file, not a run"


def test_racing_runs_get_folders_of_their_own(tmp_path):
    made: list[Path] = []
    threads = [
        threading.Thread(target=lambda: made.append(RunFolder.create(tmp_path, "x").path))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 16


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "a\n", "é", "x" * 65])
def test_a_bad_run_name_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="run name .* allowed: 1 to 64"):
        RunFolder.create(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_the_parent_is_bad_input(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="cannot hold a run folder"):
        RunFolder.create(tmp_path / "runs", "demo")


def test_only_a_run_can_be_opened(tmp_path):
    with pytest.raises(InputError, match="there is no such folder"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(InputError, match=r"it has no config\.yaml"):
        RunFolder.open(tmp_path)
    write_text_atomic(tmp_path / "config.yaml", "rounds: 1\n")
    folder = RunFolder.open(tmp_path)
    names = [path.name for path in (folder.config, folder.machine, folder.events, folder.rounds)]
    assert names == ["config.yaml", "machine.json", "events.jsonl", "rounds"]
    names = [path.name for path in (folder.adapters, folder.summary, folder.report)]
    assert names == ["adapters", "summary.json", "report.html"]


def test_client_ids_never_lead_out_of_the_folder(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    folder.adapters.mkdir()
    assert folder.safe_child("client-1_a") == folder.adapters / "client-1_a"
    draw = random.Random(0)
    alphabet = [*"abAB01_-./\\ \n\t\0:~*é", "..", "/", "\ud800", "%2e", "\u202e"]
    for _ in range(10_000):
        name = "".join(draw.choices(alphabet, k=draw.randint(0, 8)))
        try:
            child = folder.safe_child(name)
        except InputError:
            continue
        assert child.parent == folder.adapters
        assert all(char.isascii() and (char.isalnum() or char in "_-") for char in name)


def test_a_link_that_leads_out_is_refused(tmp_path):
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "out").mkdir()
    (inside / "a").symlink_to(tmp_path / "out")
    (inside / "b").symlink_to(inside / "c")
    for name in ("a", "b"):
        with pytest.raises(InputError, match="is a link that leads elsewhere"):
            safe_child(inside, name)
    (tmp_path / "linked").symlink_to(inside)
    assert safe_child(tmp_path / "linked", "c") == tmp_path / "linked" / "c"


def test_a_second_process_is_told_who_runs(tmp_path):
    folder = RunFolder(tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with (
            pytest.raises(InputError, match=f"is being run by process {holder.pid}"),
            folder.lock(),
        ):
            pytest.fail("locked twice")
        holder.send_signal(signal.SIGKILL)
    with folder.lock():  # The system frees the lock of a killed process.
        late = subprocess.run(command, input="", capture_output=True, text=True, timeout=60)
    assert late.returncode != 0
    assert f"is being run by process {os.getpid()}" in late.stderr
    with folder.lock():
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_the_lock_is_not_taken_twice_in_one_process_and_freed_by_an_error(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(RuntimeError, match="broken"), folder.lock():
        with pytest.raises(InputError, match="is being run by process"), folder.lock():
            pytest.fail("locked twice")
        raise RuntimeError("broken")
    with folder.lock():
        pass


def test_an_atomic_file_is_readable_by_all_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "a.json"
    write_text_atomic(path, "old")
    write_text_atomic(path, "né\n")
    assert path.read_bytes() == "né\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_text_atomic(path, "old")

    def fail(number: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("atlas.runs.files.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_text_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
