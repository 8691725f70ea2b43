"""Independent work side by side, a core for each.

Operators on a few thousand tokens are too short to be divided among cores: they wait for each other
as long as they work. Whole passes need not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import TypeVar

import torch

T = TypeVar("T")
DIVIDED = 0.75
"""Of what its cores could do, the share that torch makes of them when each operator is divided
among them; `benchmarks/profile_round.py` on two cores."""


def cores_for(device: torch.device) -> int:
    """Cores that work on a device can be divided among: those torch was given, on the CPU."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def worth_sharing(loads: Sequence[float], cores: int) -> bool:
    """Whether pieces of work end sooner a core each than together, with each operator divided.

    One heavy piece can leave the other cores idle.

    Args:
        loads: How heavy each piece is.
        cores: How many there are.
    """
    return cores > 1 and max(loads, default=0.0) * cores * DIVIDED < sum(loads)


def side_by_side(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """What the jobs return, begun in their order by as many threads as torch has cores, one each.

    Torch's modes, such as `no_grad`, do not reach into other threads: a job sets its own. If one
    fails its error is raised once all have ended.
    """
    cores = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return [done.result() for done in [pool.submit(job) for job in jobs]]
    finally:
        # The number is each thread's own, but also what new threads begin with.
        torch.set_num_threads(cores)


def lending(things: Iterable[T]) -> Callable[[], AbstractContextManager[T]]:
    """Things that one job at a time may have, lent to whoever comes; there must be enough."""
    free: SimpleQueue[T] = SimpleQueue()
    for thing in things:
        free.put(thing)

    @contextmanager
    def lend() -> Iterator[T]:
        thing = free.get()
        try:
            yield thing
        finally:
            free.put(thing)

    return lend
