"""The heap's settings: one heap for all threads, whose blocks stay in it."""

import subprocess
import sys

import pytest

from atlas.runs.process import _glibc, share_heap

needs_glibc = pytest.mark.skipif(_glibc() is None, reason="the C library is not glibc")
PROGRAM = """
import ctypes, re, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from atlas.runs.process import share_heap

if sys.argv[1] == "shared":
    assert share_heap()
malloc, together = ctypes.CDLL(None).malloc, Barrier(4)
malloc.restype = ctypes.c_void_p

def region(_):
    together.wait()
    return malloc(ctypes.c_size_t(4096)) >> 26

def resident():
    return int(re.search(r"VmRSS:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

with ThreadPoolExecutor(4) as pool:
    print(len(set(pool.map(region, range(4)))))
start = resident()
held = [b"x" * (8 << 20) for _ in range(10)]
del held
print(resident() - start)
"""


def run(how):
    """In how many regions four threads find their blocks; MB kept of 80 that were freed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    return [int(line) for line in done.stdout.splitlines()]


@needs_glibc
def test_threads_share_one_heap_and_what_they_free_stays_for_the_next():
    regions, kept = run("shared")
    assert regions == 1
    assert kept > 60


@needs_glibc
def test_by_itself_the_library_gives_threads_heaps_of_their_own():
    regions, kept = run("plain")
    assert regions > 1
    assert kept < 20


def test_elsewhere_nothing_happens(monkeypatch):
    share_heap.cache_clear()
    monkeypatch.setattr("atlas.runs.process._glibc", lambda: None)
    assert not share_heap()
    share_heap.cache_clear()
