"""`atlas bench memory-model`: what a memory costs in training.

The model of the preset shakespeare is trained with its memory, with window attention alone and as
many parameters, and as a transformers Llama of the same size. Every figure is that of a fresh
process; contenders take turns, so that a machine that slows down slows all of them, and of the
turns the fastest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from atlas.bench.memory_model_work import CONTENDERS, ModelWork
from atlas.bench.processes import Bench, Row, Size, busy_note, measure_apart
from atlas.report.bench import draw_memory_model
from atlas.runs.events import Progress

BATCH = {"quick": 2, "full": 8}
LENGTHS = {"quick": (64,), "full": (256, 1024)}
TURNS = {"quick": 1, "full": 3}
REPEATS = {"quick": 1, "full": 3}


def run(size: Size, progress: Progress) -> Bench:
    """Train every contender for some steps at every length, in turn."""
    works = [
        ModelWork(name, size, BATCH[size], length, REPEATS[size])
        for length in LENGTHS[size]
        for _ in range(TURNS[size])
        for name in CONTENDERS
    ]
    notes = [
        "seconds: the fastest step; products: share of a step in products with weights; kernel: in "
        "the rule of the memory",
        *busy_note(),
    ]
    found = []
    for number, work in enumerate(works, start=1):
        found.append(_row(work))
        progress("memory-model", number, len(works))
    rows = fastest(found)
    return Bench("memory-model", rows, ratios(rows), notes, partial(draw_memory_model, rows))


def _row(work: ModelWork) -> Row:
    told = measure_apart("atlas.bench.memory_model_work", asdict(work), work.name)
    tokens = work.batch * work.length
    rate = {"tokens_per_second": tokens / told["seconds"]}
    return {"name": work.name, "length": work.length, "batch": work.batch, **told, **rate}


def fastest(rows: Sequence[Row]) -> list[Row]:
    """Of the turns of one contender at one length the one with the fastest step."""
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        key = (row["name"], row["length"])
        if key not in best or row["seconds"] < best[key]["seconds"]:
            best[key] = row
    return list(best.values())


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """How many times the others' time a step with a memory takes, at each length."""
    found = {(row["name"], row["length"]): row for row in rows}
    return {
        f"{how}memory_over_{peer}_{length}": found["memory", length][key] / found[peer, length][key]
        for length in dict.fromkeys(row["length"] for row in rows)
        for peer in ("window", "llama")
        for how, key in (("", "seconds"), ("cpu_", "cpu_seconds"))
    }
