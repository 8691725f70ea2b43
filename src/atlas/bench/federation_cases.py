"""Which federations `atlas bench federation` runs, by size and by what is at hand."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.bench.result import Size
from atlas.bench.smollm import smollm_folder, smollm_missing
from atlas.config.federation import FederationConfig
from atlas.config.paths import DATA_VARIABLE
from atlas.data.files import data_folder

RULE_NAME = "fedavg-factors"
SST2_MRPC_COLA = ["sst2", "mrpc", "cola"]
NO_FLOWER = "flower is left out: flwr not installed; pip install 'atlas-personal[bench]'"
NO_TEXT = f"{DATA_VARIABLE} is not set: the encoder's texts are synthetic"
NO_CAUSAL = f"smollm is left out: {DATA_VARIABLE} is not set, and its task csqa is read from there"


@dataclass(frozen=True)
class Case:
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


def find_cases(size: Size) -> tuple[list[Case], list[str]]:
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


def encoder_case(size: Size, data: Path | None, contenders: tuple[str, ...]) -> Case:
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
    return Case("encoder", about, config, contenders, turns)


def smollm_case(model: Path, data: Path) -> Case:
    """SmolLM2-135M with adapters in the last four of thirty blocks; a round is an epoch."""
    dealt = {"source": "files", "path": str(data), "tasks": ["csqa"], "train": 48}
    backbone = {"name": str(model), "max_length": 64}
    config = bench_config("smollm", 4, backbone, {"blocks": 4}, {**dealt, "clients_per_task": 3})
    about = (
        "smollm: SmolLM2-135M, 3 clients (csqa), LoRA r 8 on q and v of the last 4 of 30 blocks, "
        "3 steps of 16 texts a round, which is an epoch"
    )
    return Case("smollm", about, config, ("atlas", "peft"), turns=3)


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
