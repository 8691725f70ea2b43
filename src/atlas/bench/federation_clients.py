"""What a client more costs in memory: one federation with few clients and with many.

Each is run in a process of its own, with as many examples a client; outputs of the lower blocks
beyond a few megabytes are in a file. Adapters and their moments cannot but grow with the clients;
they have a column of their own, and the ratio is of what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atlas.bench.federation_cases import bench_config
from atlas.bench.federation_work import CONFIG
from atlas.bench.peers.rounds import read_rounds
from atlas.bench.processes import QUIET, run_watched
from atlas.bench.result import Progress, Row, Size
from atlas.build.models import find_member, find_model, start_cohort
from atlas.config.federation import FederationConfig
from atlas.config.load import dump_config
from atlas.data.clients import load_clients
from atlas.federation.holder import one_each

CASE = "clients_memory"
"""Of the rows, and of their ratio."""
COUNTS = (5, 100)
HOW = (
    f"{CASE}: MiniLM-L6, {COUNTS[0]} and {COUNTS[1]} clients with as many synthetic texts each, "
    "LoRA r 8 on q and v of the last 2 of 6 blocks; the ratio is of memory beyond adapters and "
    "their moments, many clients by few, so here less is better."
)
KEPT = 3
"""An adapter and its two moments."""


def run_clients(size: Size, folder: Path, progress: Progress) -> list[Row]:
    """One row per number of clients."""
    rows: list[Row] = []
    for clients in COUNTS:
        config = clients_config(size, clients)
        peak = run_alone(config, folder / str(clients), progress)
        rows.append(describe_memory(clients, peak, adapter_bytes(config)))
    return rows


def clients_config(size: Size, clients: int) -> FederationConfig:
    """MiniLM-L6 and synthetic texts, of which everybody has as many."""
    train, rounds = (16, 2) if size == "quick" else (32, 3)
    dealt = {"tasks": ["sentiment"], "clients_per_task": clients, "train": train}
    backbone = {"name": "minilm", "max_length": 64}
    return bench_config(CASE, rounds, backbone, {"blocks": 2}, dealt)


def run_alone(config: FederationConfig, folder: Path, progress: Progress) -> int:
    """Run a federation in a process of its own; returns its peak memory in bytes."""
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(dump_config(config), encoding="utf-8")
    log = folder / "rounds.jsonl"
    what = f"{CASE}: {config.data.clients_per_task}"
    return run_watched(
        ["-m", "atlas.bench.peers.atlas_run", str(folder), str(log)],
        folder / "output.log",
        QUIET,
        lambda: progress(what, len(read_rounds(log)), config.rounds),
    )


def adapter_bytes(config: FederationConfig) -> int:
    """What the adapters and heads of all clients take, with the moments of their training."""
    model = find_model(config, config.backbone.name)
    holders = one_each(load_clients(config))
    members = [find_member(config.adapter, model.layout, holder) for holder in holders]
    start = start_cohort(config, model, members)
    return KEPT * sum(value.nbytes for value in start.tensors.values())


def describe_memory(clients: int, peak: int, adapters: int) -> Row:
    """The figures of one run."""
    return {
        "case": CASE,
        "name": f"{clients} clients",
        "peak_mb": round(peak / 2**20),
        "adapters_mb": round(adapters / 2**20, 1),
        "beyond_adapters_mb": round((peak - adapters) / 2**20, 1),
    }


def memory_ratio(rows: Sequence[Row]) -> dict[str, float]:
    """Memory beyond adapters, with the most clients by that with the fewest; less is better."""
    beyond = [row["beyond_adapters_mb"] for row in rows]
    return {CASE: round(beyond[-1] / beyond[0], 2)}
