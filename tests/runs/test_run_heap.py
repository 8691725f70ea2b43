"""The heap's settings: one heap for all threads, and what is free is given back."""

import subprocess
import sys

import pytest

from atlas.runs.heap import _glibc, give_back, share_heap

needs_glibc = pytest.mark.skipif(_glibc() is None, reason="the C library is not glibc")

PROGRAM = """
import re, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from atlas.runs.heap import give_back, share_heap

def resident():
    return int(re.search(r"VmRSS:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

def heaps():
    '''Regions in which other threads than the first keep small blocks.'''
    import ctypes
    ctypes.CDLL(None).malloc.restype = ctypes.c_void_p
    starts = set()
    def one(_):
        together.wait()
        return ctypes.CDLL(None).malloc(ctypes.c_size_t(4096)) >> 26
    together = Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        return len(set(pool.map(one, range(4))))

if sys.argv[1] == "shared":
    assert share_heap()
print(heaps())
blocks = [b"x" * ((1 << 20) + i) for i in range(100)]
kept = blocks[::10]
held = resident()
del blocks
before = resident()
give_back()
print(held, before, resident())
"""


def run(how):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    heaps, sizes = done.stdout.splitlines()
    return int(heaps), [int(size) for size in sizes.split()]


@needs_glibc
def test_threads_share_one_heap_and_holes_are_given_back():
    heaps, (held, before, after) = run("shared")
    assert heaps == 1
    assert before > held - 30, "what is free stays in the heap"
    assert after < held - 80, "until it is given back, holes between others' blocks as well"


@needs_glibc
def test_by_itself_the_library_gives_threads_heaps_of_their_own():
    heaps, _ = run("plain")
    assert heaps > 1


def test_elsewhere_nothing_happens(monkeypatch):
    share_heap.cache_clear()
    monkeypatch.setattr("atlas.runs.heap._glibc", lambda: None)
    assert not share_heap()
    give_back()
    share_heap.cache_clear()
