"""What a study costs beside its runs one by one: `python benchmarks/compare_cost.py [PRESET ...]`.

Runs `atlas compare` over five strategies and three seeds, then the same fifteen as commands of
their own, and holds both to the same scores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

STRATEGIES = ("local", "fedavg", "mira", "atlas", "oracle")
SEEDS = (0, 1, 2)
ATLAS = [sys.executable, "-c", "from atlas.cli import main; main()"]


def timed(arguments: list[str]) -> tuple[float, str]:
    """Seconds of a command, and what it printed."""
    began = time.perf_counter()
    done = subprocess.run([*ATLAS, *arguments], check=True, capture_output=True, text=True)
    return time.perf_counter() - began, done.stdout


def main() -> None:
    """Measure and print."""
    preset, *settings = sys.argv[1:] or ["demo", "size=quick"]
    with tempfile.TemporaryDirectory() as place:
        out = ["--out", place, "--json"]
        axes = [f"strategy={','.join(STRATEGIES)}", f"seed={','.join(map(str, SEEDS))}"]
        together, _ = timed(["compare", preset, *settings, *axes, "--no-ceiling", *out])
        compared = {
            (found["strategy"], found["seed"]): found["score"]["mean"]
            for found in map(_read, Path(place).glob("*/*/*/summary.json"))
        }
        apart = 0.0
        for strategy, seed in product(STRATEGIES, SEEDS):
            keys = [f"strategy={strategy}", f"seed={seed}"]
            seconds, text = timed(["run", preset, *settings, *keys, *out])
            apart += seconds
            own = json.loads(text)["score"]["mean"]
            if own != compared[strategy, seed]:
                print(
                    f"{strategy}, seed {seed}: {own} alone, {compared[strategy, seed]} in the study"
                )
    print(f"{' '.join([preset, *settings])}: {len(STRATEGIES)} strategies, {len(SEEDS)} seeds")
    print(f"compare {together:.1f} s, runs of their own {apart:.1f} s: {together / apart:.0%}")


def _read(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text("utf-8"))
    return found


if __name__ == "__main__":
    main()
