"""What a round costs over Flower: local, deployed, with the model loaded per message, and bare.

    python benchmarks/flower_overhead.py

A deployment of three nodes on this machine, with TLS and node keys, MiniLM and few examples. Each
way makes the same rounds; the bare one sends as many bytes to and fro and does nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import atlas
from atlas.config.load import load_config
from atlas.jobs.deploy.folder import APP, SERVER, make_deployment
from atlas.jobs.deploy.operate import control_of, run_deployed
from atlas.jobs.runner import start_run
from atlas.runs.events import read_events

SETTINGS = ["backbone.name=minilm", "threads=1", "rounds=3", "strategy=fedavg", "alone=false",
            "ranks.method=fixed", "adapter.rank=8", "data.clients_per_task=1", "data.train=16",
            "data.validation=16", "data.test=16"]  # fmt: skip


def round_seconds(folder: Path) -> list[float]:
    """How long the rounds of a run took."""
    return [
        e["seconds"] for e in read_events(folder / "events.jsonl") if e["event"] == "round_finished"
    ]


def use(folder: Path, server: str | None = None, client: str | None = None) -> None:
    """Have Flower start other apps."""
    path = folder / SERVER / APP / "pyproject.toml"
    text = path.read_text()
    for kind, name in (("serverapp", server), ("clientapp", client)):
        lines = [f'{kind} = "{name}"' if name and line.startswith(kind) else line
                 for line in text.splitlines()]  # fmt: skip
        text = "\n".join(lines) + "\n"
    path.write_text(text)


def bare(folder: Path) -> list[float]:
    """Rounds of messages that nothing is done with."""
    use(folder, "flower_apps:bare_server", "flower_apps:bare_client")
    with control_of(folder) as control:
        number = control.start(folder / SERVER / APP, {"run": "bare"})
        while not control.status(number).over:
            time.sleep(1)
    return json.loads((folder / "bare.json").read_text())


def main() -> None:
    """Measure and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has started, too
    home = Path(tempfile.mkdtemp(prefix="atlas-flower-"))
    folder, found = home / "d", {}
    config = load_config("demo", [*SETTINGS, "size=quick"])
    try:
        local = start_run(config, home / "local")
        found["local engine"] = round_seconds(local.folder.path)
        both = local.summary["bytes"]
        size = (both["up"] + both["down"]) // (3 * 3 * 2)  # per client, round and message
        paths = [str(Path(atlas.__file__).parents[1]), str(Path(__file__).parent)]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "ATLAS_BENCH_BYTES": str(size // 2),
                       "ATLAS_PROGRAMS": str(Path(sys.executable).parent)}  # fmt: skip
        make_deployment(folder, config, {}, port=9480)
        subprocess.run([folder / "start.sh"], check=True)
        found["Flower, resident trainer"] = round_seconds(run_deployed(folder).folder.path)
        use(folder, client="flower_apps:loading_client")
        found["Flower, model loaded per message"] = round_seconds(run_deployed(folder).folder.path)
        found["Flower, bare, same bytes"] = bare(folder)
    finally:
        if (folder / "stop.sh").exists():
            subprocess.run([folder / "stop.sh"], check=False)
    print(f"bytes per client and message: {size}")
    for name, seconds in found.items():
        shown = ", ".join(f"{value:.1f}" for value in seconds)
        print(f"{name:34} median {statistics.median(seconds):5.1f} s a round ({shown})")
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
