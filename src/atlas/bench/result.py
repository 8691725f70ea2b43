"""What a benchmark finds, and how it is kept."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from atlas.config.messages import nearest
from atlas.errors import InputError
from atlas.runs.files import write_text_atomic
from atlas.runs.process import machine_facts

NAMES = ("federation", "memory", "server", "startup")
Size = Literal["quick", "full"]
Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Bench:
    """The outcome of one benchmark.

    Attributes:
        name: The benchmark's.
        rows: One per thing measured, in the order of the table; all JSON values.
        ratios: How the peers compare, by name.
        notes: What a reader must know to trust the figures, a sentence each.
        plot: Draws the rows into a PNG file.
    """

    name: str
    rows: list[Row]
    ratios: Mapping[str, float]
    notes: list[str] = field(default_factory=list)
    plot: Callable[[Path], None] | None = None

    def plain(self) -> dict[str, Any]:
        """What `--json` prints and the file holds."""
        return {
            "bench": self.name,
            "rows": [dict(row) for row in self.rows],
            "ratios": dict(self.ratios),
            "notes": self.notes,
            "machine": machine_facts(),
        }


def check_size(size: str) -> Size:
    """The size of that name."""
    if size not in ("quick", "full"):
        raise InputError(f"bench: unknown size {size!r}; allowed: quick, full")
    return cast(Size, size)


def run_bench(name: str, size: Size, progress: Progress) -> Bench:
    """Run the benchmark of that name."""
    if name not in NAMES:
        near = nearest(name, NAMES)
        hint = f"did you mean {near}? " if near else ""
        raise InputError(f"bench: unknown name {name!r}; {hint}allowed: {', '.join(NAMES)}")
    module = importlib.import_module(f"atlas.bench.{name}")
    found: Bench = module.run(size, progress)
    return found


def save_bench(bench: Bench, folder: Path) -> list[Path]:
    """Write the JSON file and the plot; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"bench-{bench.name}.json"]
    write_text_atomic(written[0], json.dumps(bench.plain(), indent=2, sort_keys=True) + "\n")
    if bench.plot is not None:
        written.append(folder / f"bench-{bench.name}.png")
        bench.plot(written[-1])
    return written
