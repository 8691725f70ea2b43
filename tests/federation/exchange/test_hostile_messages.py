"""Ten thousand hostile messages into the codec and the guard, in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_none_is_accepted_nothing_crashes_and_memory_stays():
    """What is let in is a sound message that says something else: a number's last bits changed."""
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    done = subprocess.run(
        [sys.executable, "-m", "tests.federation.exchange.hostile_messages", "10000"],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert seen["tried"] == 10_000
    assert seen.get("accepted", 0) == 0
    assert seen["refused"] + seen["another sound message"] == 10_000
    assert seen["another sound message"] < 500
    ways = ("flip", "cut", "header", "number", "facts", "poison", "noise")
    assert all(seen[f"refused {way}"] > 1000 for way in ways)
    assert seen["grown_mb"] < 50 and seen["peak_mb"] < 50
