"""A real deployment on this machine: Flower's processes, started by the scripts, ended by id."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import atlas
from atlas.engines.flower.keys import write_node_key
from atlas.jobs.deploy.folder import make_deployment
from atlas.runs.events import read_events

HERE = {
    **os.environ,
    "PYTHONPATH": str(Path(atlas.__file__).parents[1]),
    "ATLAS_PROGRAMS": str(Path(sys.executable).parent),
    "OMP_NUM_THREADS": "1",
}


def free_ports(count):
    """The first of so many ports in a row that nobody uses."""
    for start in range(20_000 + os.getpid() % 20_000, 65_000, count):
        try:
            for port in range(start, start + count):
                with socket.socket() as door:
                    door.bind(("127.0.0.1", port))
        except OSError:
            continue
        return start
    raise RuntimeError("no free ports")


class Deployment:
    """Server and nodes; a context that leaves no process behind."""

    def __init__(self, folder, config):
        self.folder = folder
        self.settings = make_deployment(folder, config, {}, port=free_ports(8))
        self.others = []

    def __enter__(self):
        self.start("start.sh", wait=True)
        return self

    def __exit__(self, *_):
        for process in self.others:
            end(process)
        self.start("stop.sh", wait=True)
        for path in self.folder.glob("nodes/*/trainer.json"):
            wait_for(lambda path=path: not lives(json.loads(path.read_text())["process"]))

    def start(self, script, *, wait=False):
        """Run one of the scripts."""
        nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen([self.folder / script], env=HERE, **nothing)
        if wait:
            assert process.wait(180) == 0, script
        else:
            self.others.append(process)
        return process

    def process(self, part):
        return int((self.folder / part / "process").read_text())

    def kill(self, part):
        """kill -9 of a server or a node."""
        os.kill(self.process(part), signal.SIGKILL)

    def kill_trainer(self, node):
        found = json.loads((self.folder / "nodes" / node / "trainer.json").read_text())
        os.kill(found["process"], signal.SIGKILL)

    def run(self, *given):
        """`atlas deploy run` in a process of its own."""
        command = [sys.executable, "-m", "atlas", "deploy", "run", self.folder, *given, "--json"]
        process = subprocess.Popen(command, env=HERE, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        self.others.append(process)
        return process

    def reach(self, number, name="demo", event="round_finished", patience=240):
        """Wait until a run has come to an event of a round."""
        log = self.folder / "runs" / name / "events.jsonl"

        def there():
            events = read_events(log) if log.exists() else []
            return any(e["event"] == event and e.get("round") == number for e in events)

        wait_for(there, patience)

    def stranger(self):
        """A node whose key nobody has registered."""
        place = self.folder / "stranger"
        shutil.copytree(self.folder / "nodes" / next(iter(self.settings.nodes)), place)
        for name in ("node.key", "node.pub", "process", "supernode.log"):
            (place / name).unlink()
        write_node_key(place)
        script = place / "start.sh"
        ports = sorted(node.port for node in self.settings.nodes.values())
        script.write_text(script.read_text().replace(str(ports[0]), str(ports[-1] + 1)))
        return self.start("stranger/start.sh")


def summary_of(process, patience=400):
    out, err = process.communicate(timeout=patience)
    assert process.returncode == 0, err[-2000:]
    return json.loads(out)


def lives(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def end(process):
    if process.poll() is None:
        process.kill()
    process.wait(20)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def wait_for(found, patience=30):
    began = time.monotonic()
    while not found():
        assert time.monotonic() - began < patience, "it never came"
        time.sleep(0.2)
