"""Where large tensors lie: in pieces of their own, which go back to the system when they are freed.

Passes of a round have ever other sizes. In the heap of the C library their tensors leave holes that
the next ones do not fit into. Pieces of their own have to be cleared by the system each time; in
huge pages that is a few percent of a round.
"""

from __future__ import annotations

import ctypes
import os
import platform

MAPPED_FROM = 1 << 20
"""Bytes from which a piece is mapped by itself."""
KEPT_FREE = 1 << 24
"""Free bytes at the heap's end beyond which they are given back."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def map_large_pieces() -> bool:
    """Set this process up so; returns whether its C library knows how (glibc does)."""
    if platform.libc_ver()[0] != "glibc":
        return False
    # Read by torch when it first allocates; users may have set it.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    library = ctypes.CDLL(None)
    return bool(
        library.mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM)
        and library.mallopt(_M_TRIM_THRESHOLD, KEPT_FREE)
    )
