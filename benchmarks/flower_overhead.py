"""What a round costs over Flower: local, deployed, with the model loaded per message, and bare.

    python benchmarks/flower_overhead.py [key=value ...]      backbone.name=tiny for a trial

A deployment of three nodes on this machine, with TLS and node keys, MiniLM and few examples. Each
way makes the same rounds; the bare one sends the deployed run's messages again, as many bytes to
the same nodes and back in the same order, and does nothing with them. Every way is printed as soon
as it is measured. SIGTERM and Ctrl-C end all that was started.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from flower_apps import ROUND, notes_of

import atlas
from atlas.config.load import load_config
from atlas.jobs.deploy.folder import APP, SERVER, make_deployment
from atlas.jobs.deploy.operate import control_of, run_deployed
from atlas.jobs.runner import start_run
from atlas.runs.events import read_events

SETTINGS = ["backbone.name=minilm", "threads=1", "rounds=3", "strategy=fedavg", "alone=false",
            "ranks.method=fixed", "adapter.rank=8", "data.clients_per_task=1", "data.train=16",
            "data.validation=16", "data.test=16"]  # fmt: skip
PORT = 9480
Seconds = dict[str, list[float]]
"""How long the messages of each kind took, all nodes at the same time, round after round."""


def tell(text: str) -> None:
    """Print at once: a run that is stopped leaves what it has measured."""
    print(text, flush=True)


def round_seconds(folder: Path) -> list[float]:
    """How long the rounds of a run took."""
    return [
        e["seconds"] for e in read_events(folder / "events.jsonl") if e["event"] == "round_finished"
    ]


def use(folder: Path, server: str, client: str) -> None:
    """Have Flower start other apps."""
    path = folder / SERVER / APP / "pyproject.toml"
    names = {"serverapp": server, "clientapp": client}
    lines = []
    for line in path.read_text().splitlines():
        kind = line.partition(" = ")[0]
        lines.append(f'{kind} = "{names[kind]}"' if kind in names else line)
    path.write_text("\n".join(lines) + "\n")


def exchanges(folder: Path, run: str) -> tuple[Seconds, list[str]]:
    """Seconds of a run's messages, and what went where in which order."""
    entries = [json.loads(line) for line in (folder / notes_of(run)).read_text().splitlines()]
    rounds = [entry for entry in entries if entry["about"] in ROUND]
    order = [f"{e['about']}: {sorted((c, node) for c, (node, *_) in e['sizes'].items())}"
             for e in rounds]  # fmt: skip
    return {what: [e["seconds"] for e in rounds if e["about"] == what] for what in ROUND}, order


def report(name: str, found: Seconds, rounds: list[float]) -> None:
    """Tell what a way took."""
    told = "; ".join(
        f"{what} {median(took):.2f} ({', '.join(f'{value:.2f}' for value in took)})"
        for what, took in found.items()
    )
    shown = ", ".join(f"{value:.2f}" for value in rounds)
    tell(f"{name:34} {median(rounds):6.2f} s a round ({shown}){'; ' if told else ''}{told}")


def deployed(
    folder: Path, name: str, client: str, *settings: str
) -> tuple[Seconds, list[str], str]:
    """A run on nodes whose client app is another one."""
    use(folder, "flower_apps:noting_server", client)
    place = run_deployed(folder, settings).folder.path
    found, order = exchanges(folder, place.name)
    report(name, found, round_seconds(place))
    return found, order, place.name


def bare(folder: Path, run: str, order: list[str]) -> Seconds:
    """The messages of a run's rounds again, with nothing done about them."""
    use(folder, "flower_apps:bare_server", "flower_clients:bare_client")
    with control_of(folder) as control:
        number = control.start(folder / SERVER / APP, {"run": run})
        while not (status := control.status(number)).over:
            time.sleep(1)
    if not status.well:
        raise RuntimeError(f"the bare run failed: {status.details}")
    found, again = exchanges(folder, "bare")
    assert again == order, "the bare run sent something else"
    rounds = [sum(pair) for pair in zip(*found.values(), strict=True)]
    report("Flower, bare, same bytes", found, rounds)
    return found


def tell_bytes(folder: Path, run: str) -> None:
    """Tell what a message of each kind carries, the mean over clients and rounds."""
    entries = [json.loads(line) for line in (folder / notes_of(run)).read_text().splitlines()]
    for what in ROUND:
        sizes = [s for e in entries if e["about"] == what for s in e["sizes"].values()]
        there, back = (sum(s[side] for s in sizes) // len(sizes) for side in (1, 2))
        tell(f"{what}: {len(sizes)} messages of {there:,} bytes, answers of {back:,}")


def compare(name: str, found: Seconds, twin: Seconds, work: float) -> None:
    """Tell what a way's messages take beyond bare ones; at most a second is asked."""
    beyond = {what: median(found[what]) - median(twin[what]) for what in ROUND}
    each = sum(beyond.values()) / len(ROUND)
    told = ", ".join(f"{what} {value:+.2f}" for what, value in beyond.items())
    tell(f"{name}: {each:+.2f} s a message beyond bare ({told}); {each - work / len(ROUND):+.2f} "
         f"without the work itself, a local round of {work:.2f} s")  # fmt: skip


def measure(home: Path, settings: list[str]) -> None:
    """All ways, each told when it is done."""
    folder, config = home / "d", load_config("demo", [*SETTINGS, "size=quick", *settings])
    began = time.perf_counter()
    local = round_seconds(start_run(config, home / "local").folder.path)
    report("local engine", {}, local)
    make_deployment(folder, config, {}, port=PORT)
    subprocess.run([folder / "start.sh"], check=True)
    thin = "atlas.engines.flower.client_app:app"
    resident, order, run = deployed(folder, "Flower, resident trainer", thin)
    tell_bytes(folder, run)
    twin = bare(folder, run, order)
    compare("resident trainer", resident, twin, median(local))
    loading = "flower_clients:loading_client"
    loaded, _, _ = deployed(folder, "Flower, model loaded per message", loading, "rounds=2")
    compare("model loaded per message", loaded, twin, median(local))
    tell(f"{time.perf_counter() - began:.0f} s in all, load {os.getloadavg()[0]:.1f}")


def main() -> None:
    """Measure and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has started, too
    home = Path(tempfile.mkdtemp(prefix="atlas-flower-"))
    paths = [str(Path(atlas.__file__).parents[1]), str(Path(__file__).resolve().parent)]
    programs = str(Path(sys.executable).parent)
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "ATLAS_PROGRAMS": programs}
    done = False
    try:
        measure(home, sys.argv[1:])
        done = True
    finally:
        if (stop := home / "d" / "stop.sh").exists():
            subprocess.run([stop], check=False)
        if done:
            shutil.rmtree(home, ignore_errors=True)
        else:
            tell(f"not finished; logs are in {home}")


if __name__ == "__main__":
    main()
