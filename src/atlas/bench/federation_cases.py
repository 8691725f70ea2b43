"""Which federations `atlas bench federation` runs, and what a client more costs in memory.

The cost of a client is told by one federation with few clients and with many. Each is run in a
process of its own, with as many examples a client; outputs of the lower blocks beyond a few
megabytes are in a file. Adapters and their moments cannot but grow with the clients; they have a
column of their own, and the ratio is of what is left.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.backbones.smollm import smollm_folder, smollm_missing
from atlas.bench.federation_work import CONFIG
from atlas.bench.peers.rounds import read_rounds
from atlas.bench.processes import QUIET, Row, Size, run_watched
from atlas.build.models import find_member, find_model, start_cohort
from atlas.config.federation import FederationConfig
from atlas.config.load import dump_config
from atlas.config.places import DATA_VARIABLE
from atlas.data.clients import load_clients
from atlas.data.files import data_folder
from atlas.federation.clients import one_each
from atlas.runs.events import Progress

RULE_NAME = "fedavg-factors"
SST2_MRPC_COLA = ["sst2", "mrpc", "cola"]
NO_FLOWER = "flower is left out: flwr not installed; pip install 'atlas-personal[bench]'"
NO_TEXT = f"{DATA_VARIABLE} is not set: the encoder's texts are synthetic"
NO_CAUSAL = f"smollm is left out: {DATA_VARIABLE} is not set, and its task csqa is read from there"


@dataclass(frozen=True)
class FederationCase:
    """One federation and who runs it.

    Attributes:
        name: Of its rows.
        about: What it is, for the notes.
        config: Its settings.
        contenders: Names in `federation.PROGRAMS`, ours first.
        turns: How often each of them runs it.
    """

    name: str
    about: str
    config: FederationConfig
    contenders: tuple[str, ...]
    turns: int = 1


def find_cases(size: Size) -> tuple[list[FederationCase], list[str]]:
    """The cases that can be run here, and notes on what is left out."""
    notes = []
    data = data_folder(None) if os.environ.get(DATA_VARIABLE) else None
    peers: tuple[str, ...] = ("atlas", "peft")
    if importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None:
        notes.append(NO_FLOWER)
    else:
        peers += ("flower",)
    if data is None:
        notes.append(NO_TEXT)
    cases = [encoder_case(size, data, peers)]
    if size == "full":
        missing = smollm_missing()
        if missing:
            notes.append(f"smollm is left out: {missing}")
        elif data is None:
            notes.append(NO_CAUSAL)
        else:
            cases.append(smollm_case(smollm_folder(), data))
    return cases, notes


def encoder_case(size: Size, data: Path | None, contenders: tuple[str, ...]) -> FederationCase:
    """MiniLM-L6 with adapters in the last two of six blocks."""
    per_task, train, rounds, turns = (1, 32, 2, 1) if size == "quick" else (3, 160, 5, 3)
    dealt: dict[str, Any] = {"clients_per_task": per_task, "train": train}
    if data is not None:
        dealt |= {"source": "files", "path": str(data), "tasks": SST2_MRPC_COLA}
    backbone = {"name": "minilm", "max_length": 64}
    config = bench_config("encoder", rounds, backbone, {"blocks": 2}, dealt)
    about = (
        f"encoder: MiniLM-L6, {3 * per_task} clients ({'sst2, mrpc, cola' if data else 'synthetic'}"
        f"), LoRA r 8 on q and v of the last 2 of 6 blocks, {train // 16} steps of 16 texts a round"
    )
    return FederationCase("encoder", about, config, contenders, turns)


def smollm_case(model: Path, data: Path) -> FederationCase:
    """SmolLM2-135M with adapters in the last four of thirty blocks; a round is an epoch."""
    dealt = {"source": "files", "path": str(data), "tasks": ["csqa"], "train": 48}
    backbone = {"name": str(model), "max_length": 64}
    config = bench_config("smollm", 4, backbone, {"blocks": 4}, {**dealt, "clients_per_task": 3})
    about = (
        "smollm: SmolLM2-135M, 3 clients (csqa), LoRA r 8 on q and v of the last 4 of 30 blocks, "
        "3 steps of 16 texts a round, which is an epoch"
    )
    return FederationCase("smollm", about, config, ("atlas", "peft"), turns=3)


def bench_config(
    name: str,
    rounds: int,
    backbone: dict[str, Any],
    adapter: dict[str, Any],
    data: dict[str, Any],
) -> FederationConfig:
    """Nothing is evaluated, and no client trains a shadow: the others do neither."""
    return FederationConfig.model_validate(
        {
            "name": name,
            "rounds": rounds,
            "strategy": RULE_NAME,
            "alone": False,
            "validate_every": 0,
            "backbone": backbone,
            "adapter": {"modules": ["query", "value"], "rank": 8, **adapter},
            "train": {"epochs": 1, "batch": 16, "lr": 5e-4},
            "data": {"validation": 1, "test": 1, **data},
        }
    )


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
