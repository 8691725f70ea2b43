"""`atlas bench memory`: the exact rule against a token loop and titans-pytorch, same sizes.

Every figure is that of a fresh process: the fastest of a few forward and backward passes of one
layer (batch 4, 4 heads, gates per token), and how far its memory rose above what it held before.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import asdict

from atlas.bench.memory_work import BATCH, MemoryWork
from atlas.bench.processes import Bench, Row, Size, measure_apart
from atlas.report.bench import draw_memory
from atlas.runs.events import Progress

HEAD_DIMS = {"quick": (16,), "full": (16, 32, 64, 128)}
LENGTHS = {"quick": (64, 128), "full": (256, 512, 1024, 2048, 4096)}
LENGTH = {"quick": 128, "full": 512}
"""Of the passes that compare head dims."""
HEAD_DIM = {"quick": 16, "full": 64}
"""Of the passes that compare lengths."""
SLOW_REPEATS, REPEATS = 2, 8
LONGEST = {"naive": 2048, "titans": 1024}
"""Beyond these a contender takes minutes, or more memory than there is."""


def run(size: Size, progress: Progress) -> Bench:
    """Measure every contender that is installed."""
    names = ["exact", "chunk-start", "naive"]
    notes = ["ms: fastest forward and backward pass; peak_mb: rise above what was held before it"]
    if importlib.util.find_spec("titans_pytorch"):
        names.append("titans")
    else:
        notes.append("titans-pytorch is not installed: pip install 'atlas-personal[bench]'")
    works = plan(names, size)
    rows = []
    for number, work in enumerate(works, start=1):
        rows.append(_row(work))
        progress("memory", number, len(works))
    return Bench("memory", rows, ratios(rows, size), notes, lambda path: draw_memory(rows, path))


def plan(names: Sequence[str], size: Size) -> list[MemoryWork]:
    """All that is measured: every head dim at one length, then every length at one head dim."""
    pairs = [(dim, LENGTH[size]) for dim in HEAD_DIMS[size]]
    pairs += [(HEAD_DIM[size], length) for length in LENGTHS[size]]
    return [
        MemoryWork(name, dim, length, SLOW_REPEATS if name in LONGEST else REPEATS)
        for dim, length in dict.fromkeys(pairs)
        for name in names
        if length <= LONGEST.get(name, length)
    ]


def _row(work: MemoryWork) -> Row:
    what = f"{work.name} at head dim {work.head_dim}"
    found = measure_apart("atlas.bench.memory_work", asdict(work), what)
    return {
        "name": work.name,
        "head_dim": work.head_dim,
        "length": work.length,
        "ms": found["ms"],
        "tokens_per_second": BATCH * work.length / found["ms"] * 1e3,
        "peak_mb": found["peak_mb"],
    }


def ratios(rows: Sequence[Row], size: Size) -> dict[str, float]:
    """How many times faster the exact rule is, and how its time grows with the length."""
    found = {(row["name"], row["head_dim"], row["length"]): row for row in rows}
    at, values = LENGTH[size], {}
    for peer in ("titans", "naive"):
        for dim in HEAD_DIMS[size][-2:]:
            if (peer, dim, at) in found:
                ours, theirs = found["exact", dim, at], found[peer, dim, at]
                values[f"{peer}_{dim}"] = theirs["ms"] / ours["ms"]
                values[f"{peer}_memory_{dim}"] = theirs["peak_mb"] / max(ours["peak_mb"], 1e-9)
    low, high = (512, 4096) if size == "full" else LENGTHS[size]
    times = [found["exact", HEAD_DIM[size], length]["ms"] for length in (low, high)]
    values["length_exponent"] = math.log(times[1] / times[0]) / math.log(high / low)
    return values
