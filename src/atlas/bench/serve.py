"""Requests of many clients: all adapters over one backbone, against PEFT's two ways.

Contenders get the same requests in the same windows of as many as wait at a time; a peer answers
those of one client in one pass, too, which is the most that one model per client can share.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from atlas.bench.federation_work import model_folder
from atlas.bench.processes import Bench, Row, Size, busy_note, measure_apart
from atlas.config.load import load_federation
from atlas.jobs.federation.export_all import export_all
from atlas.jobs.runner import start_run
from atlas.runs.events import Progress

CONTENDERS = {
    "atlas": "all clients of a window in one pass",
    "peft models": "a PEFT model for each client",
    "peft adapters": "one PEFT model, set_adapter for each client of a window",
}
CASES: dict[Size, list[int]] = {"quick": [3], "full": [9, 30]}
REQUESTS: dict[Size, int] = {"quick": 48, "full": 480}
WINDOW = 16
TURNS: dict[Size, int] = {"quick": 1, "full": 3}


def run(size: Size, progress: Progress) -> Bench:
    """Measure every contender with every number of clients, each in a process of its own."""
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    busy, total = busy_note(), len(CASES[size]) * len(CONTENDERS)
    for clients in CASES[size]:
        with tempfile.TemporaryDirectory() as place:
            work = _prepare(Path(place), clients, REQUESTS[size], TURNS[size])
            found: dict[str, Any] = {}
            for name in CONTENDERS:
                told = measure_apart("atlas.bench.serve_work", {**work, "name": name}, name)
                found[name] = told
                rate = statistics.median(told["rates"])
                row = {"clients": clients, "name": name, "requests_second": round(rate, 1)}
                rows.append({**row, "peak_mb": round(told["peak"] / 1e6), "way": CONTENDERS[name]})
                progress("contenders", len(rows), total)
        ratios |= _ratios(clients, found)
    notes = [
        f"MiniLM, one text a request, windows of {WINDOW} requests of random clients; medians of "
        f"{TURNS[size]} turns of {REQUESTS[size]} requests, after one that is not counted.",
        "Answers of all contenders were compared: the same label for every request.",
        *busy,
    ]
    return Bench("serve", rows, ratios, notes)


def _prepare(place: Path, clients: int, requests: int, turns: int) -> dict[str, Any]:
    """A finished run of so many clients, and its adapters in one folder."""
    overrides = [
        "rounds=1",
        "strategy=local",
        "alone=false",
        "ranks.method=fixed",
        "data.tasks=[sentiment]",
        f"data.clients_per_task={clients}",
        "data.train=16",
        "data.validation=8",
        "data.test=8",
    ]
    folder = start_run(load_federation("demo", overrides), place).folder
    export_all(folder, place / "served")
    return {
        "run": str(folder.path),
        "served": str(place / "served"),
        "base": str(model_folder("minilm")),
        "requests": requests,
        "window": WINDOW,
        "turns": turns,
    }


def _ratios(clients: int, found: dict[str, Any]) -> dict[str, float]:
    """How many times the requests, and what share of the memory."""
    ours = found["atlas"]
    ratios = {}
    for name, told in found.items():
        if told["answers"] != ours["answers"]:
            raise RuntimeError(f"{name} answers otherwise than atlas: nothing can be compared")
        if name != "atlas":
            short = f"{name.replace(' ', '_')}_{clients}"
            rate = statistics.median(ours["rates"]) / statistics.median(told["rates"])
            ratios[f"requests_{short}"] = round(rate, 2)
            ratios[f"memory_{short}"] = round(told["peak"] / ours["peak"], 2)
    return ratios
