"""Large tensors in pieces of their own."""

import platform
import subprocess
import sys

import pytest

from atlas.runs import heap

MAPPED = """
import ctypes, sys, torch
from atlas.runs.heap import MAPPED_FROM, map_large_pieces

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost").split()]

def mapped():
    find = ctypes.CDLL(None).mallinfo2
    find.restype = Info
    return find().hblkhd

if sys.argv[1] == "on":
    assert map_large_pieces()
for _ in range(3):  # pieces that were freed teach the library to keep later ones in its heap
    freed = torch.ones(8 * MAPPED_FROM // 4)
    del freed
before = mapped()
kept = torch.ones(MAPPED_FROM // 2)
during = mapped()
del kept
print(during - before, mapped() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_large_tensor_is_mapped_and_gone_when_it_is_freed():
    found = {}
    for how in ("off", "on"):
        done = subprocess.run(
            [sys.executable, "-c", MAPPED, how], capture_output=True, text=True, check=True
        )
        found[how] = [int(part) for part in done.stdout.split()]
    assert found["off"][0] == 0, "without the setting it lies in the heap"
    assert found["on"][0] >= 2 * heap.MAPPED_FROM
    assert found["on"][1] == 0


def test_another_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    assert not heap.map_large_pieces()
    assert "THP_MEM_ALLOC_ENABLE" not in heap.os.environ
