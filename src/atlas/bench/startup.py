"""Seconds until commands answer: ours, Flower's, and the import that most of them need."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from atlas.bench.processes import QUIET, Bench, Row, Size, busy_note
from atlas.report.bench import draw_startup
from atlas.runs.events import Progress

TIMES: dict[Size, int] = {"quick": 2, "full": 7}
NO_FLOWER = "flwr --help is left out: flwr not installed; pip install 'atlas-personal[bench]'"
RATIOS = {"flower_help": "flwr --help", "torch_import": 'python -c "import torch"'}
"""Whose seconds are divided by those of `atlas --help`, so that more is better."""


def run(size: Size, progress: Progress) -> Bench:
    """Time every command some times, each after a first call that warms the disk's cache."""
    commands, busy = find_commands(), busy_note()
    times = TIMES[size]
    rows: list[Row] = []
    for number, (name, command) in enumerate(commands.items()):
        taken = [seconds_of(command) for _ in range(times + 1)][1:]
        middle, least = statistics.median(taken), min(taken)
        rows.append({"command": name, "seconds": round(middle, 3), "least": round(least, 3)})
        progress("commands", number + 1, len(commands))
    notes = [f"Medians of {times} calls, after one that is not counted.", *busy]
    if "flwr --help" not in commands:
        notes.append(NO_FLOWER)
    return Bench("startup", rows, find_ratios(rows), notes, partial(draw_startup, rows))


def find_commands() -> dict[str, list[str]]:
    """What is timed, as typed and as called; Flower only where it is installed."""
    folder = Path(sys.executable).parent
    # Through the interpreter that runs this, not through whatever the path finds.
    ours = [sys.executable, "-c", "from atlas.cli import main; main()"]
    commands = {
        "atlas --help": [*ours, "--help"],
        "atlas doctor": [*ours, "doctor"],
        'python -c "import atlas"': [sys.executable, "-c", "import atlas"],
        RATIOS["torch_import"]: [sys.executable, "-c", "import torch"],
    }
    if (folder / "flwr").exists():
        commands[RATIOS["flower_help"]] = [str(folder / "flwr"), "--help"]
    return commands


def seconds_of(command: Sequence[str]) -> float:
    """How long a command takes to its end.

    Raises:
        RuntimeError: If it fails.
    """
    began = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - commands of this file
        command,
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **QUIET},
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {said[-500:]}")
    return seconds


def find_ratios(rows: Sequence[Row]) -> dict[str, float]:
    """How much longer the others take than `atlas --help`."""
    seconds = {row["command"]: row["seconds"] for row in rows}
    ours = seconds["atlas --help"]
    return {
        ratio: round(seconds[name] / ours, 2) for ratio, name in RATIOS.items() if name in seconds
    }
