"""`stop.sh` ends what was started and what came of it, and nothing else."""

import os
import subprocess

import pytest

from atlas.jobs.deploy.folder import make_deployment
from tests.jobs.deploy.nodes import CLIENTS, settings
from tests.jobs.deploy.processes import lives, wait_for


def script(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def stop(tmp_path):
    """A deployment's folder, and what runs its `stop.sh` without waiting."""
    make_deployment(tmp_path / "d", settings(), {})
    quick = script(tmp_path / "bin" / "sleep", "exit 0").parent
    path = f"{quick}{os.pathsep}{os.environ['PATH']}"
    around = {**os.environ, "PATH": path, "COLUMNS": "80"}

    def run():
        found = subprocess.run([tmp_path / "d/stop.sh"], env=around, capture_output=True, text=True,
                               timeout=60, check=False)  # fmt: skip
        assert (found.returncode, found.stderr) == (0, "")

    return tmp_path / "d", run


def start(program, note):
    """Start a program that starts another, whose number is in `note`."""
    process = subprocess.Popen([script(program, f"/bin/sleep 300 & echo $! > {note}\nwait")])
    wait_for(lambda: note.exists() and note.read_text().endswith("\n"))
    return process, int(note.read_text())


def test_what_a_node_has_started_ends_with_it(tmp_path, stop):
    folder, run = stop
    node, child = start(tmp_path / "bin/flower-supernode", tmp_path / "child")
    written = folder / "nodes" / CLIENTS[0] / "process"
    written.write_text(f"{node.pid}\n")
    run()
    assert node.wait(10) != 0
    wait_for(lambda: not lives(child))
    assert not written.exists()


def test_a_program_that_has_got_the_number_since_is_left_alone(tmp_path, stop):
    folder, run = stop
    stranger, child = start(tmp_path / "bin/stranger", tmp_path / "child")
    (folder / "server" / "process").write_text(f"{stranger.pid}\n")
    try:
        run()
        assert stranger.poll() is None
        assert lives(child)
    finally:
        os.kill(child, 9)
        stranger.wait(10)
