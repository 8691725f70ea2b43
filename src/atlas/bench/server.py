"""A server's work for many clients: seconds to plan and to mix once, and memory, against n.

Clients are made up and their state is on disk. Every number of clients is measured in a process of
its own, with what `atlas run strategy=atlas server.state=disk` uses; `fedavg`, one mixture of all
clients, is timed beside it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from atlas.bench.processes import Bench, Row, Size, run_watched
from atlas.bench.server_work import ServerCase
from atlas.errors import InputError
from atlas.report.bench import draw_server
from atlas.runs.events import Progress

CASES: dict[Size, list[ServerCase]] = {
    "full": [ServerCase(n, 16, 8, 384, 1024) for n in (300, 1_000, 3_000, 10_000)],
    "quick": [ServerCase(n, 4, 4, 96, 256) for n in (150, 300, 1_000)],
}
SPARE = 1 << 30
"""Bytes that are to be left free on the disk."""
DECADE = 10
"""The exponent is that of the last so many fold."""
MILLION = 1_000_000


def run(size: Size, progress: Progress) -> Bench:
    """Measure every number of clients, and simulate more."""
    return run_cases(CASES[size], progress)


def run_cases(cases: Sequence[ServerCase], progress: Progress) -> Bench:
    """Measure the cases, the fewest clients first; ten times the most are simulated."""
    check_room(max(case.bytes for case in cases), Path(tempfile.gettempdir()))
    rows: list[Row] = []
    for number, case in enumerate(cases):
        progress(f"{case.clients} clients", number, len(cases) + 1)
        rows.append(measure_case(case))
    progress("simulation", len(cases), len(cases) + 1)
    more, growth = simulate_more(cases[-1])
    progress("clients", len(cases) + 1, len(cases) + 1)
    notes = [*describe_conditions(cases[-1]), more, on_paper(rows, cases[-1], growth)]
    return Bench("server", rows, find_ratios(rows), notes, partial(draw_server, rows))


def check_room(needed: int, folder: Path) -> None:
    """Raise unless the disk has room for the largest case."""
    free, wanted = shutil.disk_usage(folder).free, needed + SPARE
    if free < wanted:
        raise InputError(
            f"bench server: {folder} has {free / 1e9:.1f} GB free, and {wanted / 1e9:.1f} are "
            "needed; set TMPDIR to a folder on a larger disk, or use --size quick"
        )


def measure_case(case: ServerCase) -> Row:
    """Make the clients of one case up, plan and mix them, in a process of its own."""
    found = work_apart("measure", case)
    seconds = found["plan_seconds"] + found["mix_seconds"]
    return {
        "clients": case.clients,
        "plan_seconds": round(found["plan_seconds"], 4),
        "mix_seconds": round(found["mix_seconds"], 4),
        "average_seconds": round(found["average_seconds"], 4),
        "cpu_seconds": round(found["cpu_seconds"], 2),
        "ms_per_client": round(1e3 * seconds / case.clients, 2),
        "peak_gb": round(found["peak_bytes"] / 1e9, 3),
        "state_gb": round(found["state_bytes"] / 1e9, 3),
        "adapters_per_row": round(found["adapters_per_row"], 2),
        "clusters": found["clusters"],
        "ari": round(found["ari"], 3),
        "worst_error": found["worst_error"],
    }


def work_apart(what: str, case: ServerCase) -> dict[str, Any]:
    """Take a step of `server_work` in a process of its own; returns what it found."""
    spec = json.dumps(asdict(case))
    with tempfile.TemporaryDirectory(prefix="atlas-bench-server-") as name:
        folder = Path(name)
        command = ["-m", "atlas.bench.server_work", what, name, spec]
        peak = run_watched(command, folder / "log", {})
        found: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    # What was seen from outside counts where the system does not tell the process itself.
    return found | {"peak_bytes": max(peak, found["peak_bytes"])}


def find_ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Exponents in the number of clients over the last decade, and the memory of the most."""
    last = [row for row in rows if DECADE * row["clients"] >= rows[-1]["clients"]]
    clients = [row["clients"] for row in last]
    whole = [row["plan_seconds"] + row["mix_seconds"] for row in last]
    return {
        "time_exponent": round(slope(clients, whole), 3),
        "mix_exponent": round(slope(clients, [row["mix_seconds"] for row in last]), 3),
        "peak_gb": rows[-1]["peak_gb"],
    }


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The exponent p of y ~ x^p, by least squares of logarithms; zero from a single point."""
    logs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True)]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    if spread == 0:
        return 0.0
    return float(sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread)


def describe_conditions(case: ServerCase) -> list[str]:
    """What a reader must know to trust the figures."""
    return [
        f"{case.parameters:,} parameters a client ({case.modules} modules of {case.width} x "
        f"{case.width}, rank {case.rank}, and a head), float32, mixed in product space on "
        f"{os.cpu_count()} cores.",
        "Adapters are in temporary files, as with server.state=disk, sketches in memory; what the "
        "system keeps of the files in its own cache is read and written without the disk.",
        "Average seconds: one mixture of all clients for all, as under fedavg.",
        "CPU seconds are those of plan and mix on all cores together; where cores had time for "
        "more, they waited for the disk or had other work.",
        "Peak memory is the most that was ever resident in the process (VmHWM), mapped pages, "
        "sketches and libraries among it; the system's own cache of files is not.",
        "Worst error: change of some clients against the exact mixture in float64, relative.",
    ]


def simulate_more(case: ServerCase) -> tuple[str, float]:
    """Relate ten times as many clients as are measured whole.

    Returns:
        What it took, in words, and by how many bytes of memory it grows with each client.
    """
    many = replace(case, clients=DECADE * case.clients)
    few, found = (work_apart("simulate", one) for one in (case, many))
    growth = (found["peak_bytes"] - few["peak_bytes"]) / (many.clients - case.clients)
    words = (
        f"Simulated, {many.clients:,} clients of whom there are features only: grouped, related "
        f"and put in order in {found['seconds']:.1f} s, with {growth / 1e3:.1f} kB of memory for "
        f"each client; mixing would read {found['read_per_client']:.1f} adapters a client."
    )
    return words, growth


def on_paper(rows: Sequence[Row], case: ServerCase, growth: float) -> str:
    """What a million clients need at the cost of the most that were measured."""
    last = rows[-1]
    more = MILLION - last["clients"]
    seconds = MILLION * (last["plan_seconds"] + last["mix_seconds"]) / last["clients"]
    memory = last["peak_gb"] + max(0.0, growth) * more / 1e9
    disk = MILLION * case.bytes / case.clients
    return (
        f"On paper, a million clients at {last['ms_per_client']} ms each take "
        f"{seconds / 3600:.1f} hours of this machine, {memory:.1f} GB of memory and "
        f"{disk / 1e12:.2f} TB of disk (adapters sent and held)."
    )
