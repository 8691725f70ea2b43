"""Contenders as processes of their own, what a whole tree of them takes, and what is kept of it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from atlas.config.messages import nearest
from atlas.errors import InputError
from atlas.runs.events import Progress
from atlas.runs.files import write_text_atomic
from atlas.runs.process import machine_facts

PAUSE = 0.2
"""Seconds between two looks; a look takes about a millisecond of one core."""
LAST_LINES = 15
BUSY = 0.4
"""Load a core from which on a benchmark is disturbed; starting one makes some load itself."""
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Settings under which no contender calls home."""
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def need_psutil() -> Any:  # noqa: ANN401 - a module that is not typed
    """The library that tells the memory of processes.

    Raises:
        InputError: If it is not installed.
    """
    try:
        import psutil
    except ImportError:
        raise InputError("bench: needs psutil: pip install 'atlas-personal[bench]'") from None
    return psutil


def busy_note() -> list[str]:
    """A warning, if other programs keep this machine busy."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load < BUSY * cores:
        return []
    return [f"The machine was busy (load {load:.1f} on {cores} cores): do not trust the seconds."]


class TreeMemory:
    """The peak memory of a process and of all that it starts.

    Private pages are added up; of the pages that processes share, the largest share counts once,
    so that ten processes with one copy of a library do not pay for ten.
    """

    def __init__(self, root: Any) -> None:  # noqa: ANN401 - psutil.Process
        self.peak = 0
        self._errors = (need_psutil().NoSuchProcess, need_psutil().AccessDenied)
        self._root = root
        self._seen: dict[int, Any] = {}

    def look(self) -> None:
        """Take note of what the tree holds now."""
        with contextlib.suppress(*self._errors):
            for child in [self._root, *self._root.children(recursive=True)]:
                # Kept by id: a process whose parent has gone is still part of the tree.
                self._seen.setdefault(child.pid, child)
        private = shared = 0
        for process in list(self._seen.values()):
            with contextlib.suppress(*self._errors):
                info = process.memory_info()
                common = getattr(info, "shared", 0)
                private += info.rss - common
                shared = max(shared, common)
        self.peak = max(self.peak, private + shared, high_water(self._root.pid))

    def end(self) -> None:
        """End whatever of the tree is left."""
        for process in self._seen.values():
            with contextlib.suppress(*self._errors):
                process.kill()


def high_water(pid: int) -> int:
    """The most memory that one process ever held, where the system tells; zero elsewhere."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s*(\d+) kB$", text, re.MULTILINE)
    return 1024 * int(found.group(1)) if found else 0


def run_watched(
    arguments: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    look: Callable[[], None] | None = None,
) -> int:
    """Run a Python program to its end and watch its memory.

    Args:
        arguments: What follows the interpreter's name.
        log: Where its output goes.
        environment: Variables beside those of this process; limits on threads are lifted.
        look: Called between looks at the memory.

    Returns:
        The peak memory of its process tree in bytes.

    Raises:
        RuntimeError: If it fails; says the last lines of its output.
    """
    psutil = need_psutil()
    own = {name: value for name, value in os.environ.items() if name not in THREAD_LIMITS}
    with log.open("wb") as output:
        process = psutil.Popen(
            [sys.executable, *arguments],
            stdout=output,
            stderr=output,
            stdin=psutil.subprocess.DEVNULL,
            env={**own, **environment},
        )
        memory = TreeMemory(process)
        try:
            while process.poll() is None:
                memory.look()
                if look:
                    look()
                with contextlib.suppress(psutil.TimeoutExpired):
                    process.wait(PAUSE)
        finally:
            memory.end()
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        raise RuntimeError(
            f"{' '.join(arguments)} ended with {process.returncode}:\n" + "\n".join(lines)
        )
    return memory.peak


def measure_apart(module: str, work: Mapping[str, Any], what: str) -> dict[str, Any]:
    """What a module of this package, run as a program, prints of a piece of work, as JSON.

    Raises:
        RuntimeError: It fails; says what was measured and the last line of its complaint.
    """
    done = subprocess.run(  # noqa: S603 - this very interpreter
        [sys.executable, "-m", module, json.dumps(work)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RuntimeError(f"{what}: {last[0]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


NAMES = ("federation", "memory", "memory-model", "serve", "server", "startup")
Size = Literal["quick", "full"]
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


def check_folder(folder: Path) -> None:
    """Refuse, before minutes of work, a place where no folder can be.

    Raises:
        InputError: It is a file, or below one.
    """
    there = next((path for path in (folder, *folder.parents) if path.exists()), Path())
    if not there.is_dir():
        raise InputError(f"--out {folder}: cannot be written: {there} is no folder")


def run_bench(name: str, size: Size, progress: Progress) -> Bench:
    """Run the benchmark of that name."""
    if name not in NAMES:
        near = nearest(name, NAMES)
        hint = f"did you mean {near}? " if near else ""
        raise InputError(f"bench: unknown name {name!r}; {hint}allowed: {', '.join(NAMES)}")
    module = importlib.import_module(f"atlas.bench.{name.replace('-', '_')}")
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
