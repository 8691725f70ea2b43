"""A thousand clients with more than a gigabyte of adapters, in the memory of fifty."""

import json
import os
import shutil
import subprocess
import sys

import pytest

SETTINGS = (
    "strategy=fedavg",
    "alone=false",
    "rounds=2",
    "threads=1",
    "validate_every=0",
    "ranks.method=fixed",
    "ranks.devices=[]",
    "adapter.modules=[query,key,value,output,up,down]",
    "adapter.blocks=6",
    "adapter.rank=8",
    "data.tasks=[sentiment]",
    "data.train=4",
    "data.validation=2",
    "data.test=2",
    "train.epochs=1",
)
SCRIPT = "from atlas.cli import main; main()"
AT_WORK = 20
"""Clients asked in a round, of however many there are."""


def run(folder, clients, state):
    """`atlas run` in a process of its own: its summary, and the most memory it held in MB."""
    words = [
        *("run", "demo", "--out", str(folder)),
        *SETTINGS,
        f"data.clients_per_task={clients}",
        f"sample={AT_WORK / clients}",
        f"server.state={state}",
    ]
    with (folder.parent / "log").open("w") as log:
        child = subprocess.Popen([sys.executable, "-c", SCRIPT, *words], stdout=log, stderr=log)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, (folder.parent / "log").read_text()
    (found,) = folder.glob("*/summary.json")
    summary = json.loads(found.read_text())
    # Of a thousand clients, rounds and exports take gigabytes.
    shutil.rmtree(folder)
    return summary, used.ru_maxrss / 1024


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is told in kB on Linux")
def test_a_thousand_clients_on_disk_take_the_memory_of_fifty(tmp_path):
    whole, in_memory = run(tmp_path / "memory", 1000, "memory")
    spilled, on_disk = run(tmp_path / "disk", 1000, "disk")
    few, fifty = run(tmp_path / "few", 50, "disk")
    print(
        f"\n1,000 clients in memory {in_memory:.0f} MB, on disk {on_disk:.0f} MB; "
        f"50 clients {fifty:.0f} MB: {on_disk / fifty:.2f} times"
    )
    assert spilled["adapters_sha256"] == whole["adapters_sha256"] != few["adapters_sha256"]
    assert not whole["failures"] and not spilled["failures"]
    assert in_memory > 1500
    assert on_disk < 1.3 * fifty
