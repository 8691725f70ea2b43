"""Independent work side by side, a core for each.

Operators on a few thousand tokens are too short to be divided among cores: they wait for each other
as long as they work. Whole passes need not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

import torch

T = TypeVar("T")
DIVIDED = 0.75
"""Of what its cores could do, the share that is made of them when one piece of work is divided
among them. Measured on two (`docs/speed.md`); on more it is likely less."""


def cores_for(device: torch.device) -> int:
    """Cores that work on a device can be divided among: those torch was given, on the CPU."""
    return torch.get_num_threads() if device.type == "cpu" else 1


@contextmanager
def one_core() -> Iterator[None]:
    """Within this context nothing is divided among cores, for those who follow one thread."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(cores)


def shared_first(loads: Sequence[float], cores: int) -> int:
    """How many pieces of work, from the first, are best begun a core each.

    A heavy piece, or one too many, would leave the other cores idle: the rest is done after them,
    each piece divided.

    Args:
        loads: How heavy each piece is, in the order in which they are begun.
        cores: How many there are.
    """
    if cores == 1:
        return 0
    busy, left = [0.0] * cores, sum(loads)
    best, chosen = left / (cores * DIVIDED), 0
    for count, load in enumerate(loads, 1):
        busy[busy.index(min(busy))] += load
        left -= load
        ends = max(busy) + left / (cores * DIVIDED)
        if ends < best:
            best, chosen = ends, count
    return chosen


def side_by_side(jobs: Sequence[Callable[[], T]], halted: Event | None = None) -> list[T]:
    """What the jobs return, begun in their order by as many threads as torch has cores, one each.

    Torch's modes, such as `no_grad`, do not reach into other threads: a job sets its own. After a
    failure, or an interrupt, no further job is begun; it is raised once those begun have ended.

    Args:
        jobs: What to do.
        halted: Set then, for jobs that can end early.
    """
    cores = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            begun = [pool.submit(job) for job in jobs]
            try:
                for done in wait(begun, return_when=FIRST_EXCEPTION).done:
                    done.result()
            except BaseException:
                if halted is not None:
                    halted.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [done.result() for done in begun]
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
