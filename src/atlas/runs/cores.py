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

NEARLY = 1.01
"""Cores that end within this factor of each other end together."""


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


@contextmanager
def undivided_numpy() -> Iterator[None]:
    """Within this context numpy and scipy divide no product among threads; torch is left alone.

    Their library keeps threads that spin while they wait for the next product. Thousands of small
    ones, as in the tests of splits, then cost five times what they need where other programs want
    the cores too (`docs/speed.md`).
    """
    # Late: what it limits are the libraries that are loaded by then.
    import scipy.linalg  # noqa: F401 - loads numpy's library and its own
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        yield


def shared_first(
    loads: Sequence[float], cores: int, after: Callable[[int], float] | None = None
) -> int:
    """How many pieces of work, from the first, are best begun a core each.

    A heavy piece, or one too many, would leave the other cores idle: the rest is done after them,
    each piece divided.

    Args:
        loads: How heavy each piece is, in the order in which they are begun.
        cores: How many there are.
        after: How long the pieces from a place on take, divided; by default by `DIVIDED`.
    """
    if cores == 1:
        return 0
    rest = after or (lambda place: sum(loads[place:]) / (cores * DIVIDED))
    busy = [0.0] * cores
    best, chosen = rest(0), 0
    for count, load in enumerate(loads, 1):
        busy[busy.index(min(busy))] += load
        ends = max(busy) + rest(count)
        if ends < best:
            best, chosen = ends, count
    return chosen


def evened(
    groups: Sequence[Sequence[int]], load: Callable[[Sequence[int]], float], cores: int
) -> list[Sequence[int]]:
    """Groups of rows, halved as long as all cores then end sooner, in the order to begin them.

    Args:
        groups: Of rows that are better worked on together.
        load: How heavy a group is; two halves may be heavier than the whole.
        cores: How many there are.
    """
    found = list(groups)
    while len(found) >= cores:
        loads = [load(group) for group in found]
        ends = _ends(loads, cores)
        if ends <= NEARLY * sum(loads) / cores:
            break
        others = [
            [*found[:place], *_halves(group), *found[place + 1 :]]
            for place, group in enumerate(found)
            if len(group) > 1
        ]
        best = min(others, key=lambda some: _ends(list(map(load, some)), cores), default=found)
        if _ends(list(map(load, best)), cores) >= ends:
            break
        found = best
    return [found[place] for place in _begun([load(group) for group in found], cores)]


def _halves(group: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]


def _ends(loads: Sequence[float], cores: int) -> float:
    """When the last of the cores is done."""
    return max(sum(loads[place] for place in own) for own in dealt(loads, cores))


def _begun(loads: Sequence[float], cores: int) -> list[int]:
    """Pieces in the order in which free cores must take them so that each gets its own."""
    starts: dict[int, float] = {}
    for own in dealt(loads, cores):
        clock = 0.0
        for place in own:
            starts[place], clock = clock, clock + loads[place]
    return sorted(starts, key=lambda place: (starts[place], -loads[place]))


def dealt(loads: Sequence[float], cores: int) -> list[list[int]]:
    """Which pieces of work each core gets, the heaviest first, so that all end at about one time.

    The heaviest go to whoever has least; then pieces of the core that ends last are moved to
    others, or exchanged for lighter ones of theirs, as long as it then ends sooner.
    """
    hands: list[list[int]] = [[] for _ in range(cores)]
    busy = [0.0] * cores
    for place in sorted(range(len(loads)), key=lambda place: -loads[place]):
        least = busy.index(min(busy))
        hands[least].append(place)
        busy[least] += loads[place]
    while max(busy) > NEARLY * sum(loads) / cores:
        last = busy.index(max(busy))
        swaps = [
            (max(busy[last] - moved, busy[other] + moved), other, mine, theirs)
            for other in range(cores)
            if other != last
            for mine in hands[last]
            for theirs in [None, *hands[other]]
            for moved in [loads[mine] - (0.0 if theirs is None else loads[theirs])]
        ]
        ends, other, mine, theirs = min(swaps, key=lambda swap: swap[0])
        # By more than sums are rounded: equal pieces would go to and fro for ever.
        if ends >= (1 - 1e-9) * busy[last]:
            break
        _exchange(hands[last], hands[other], mine, theirs)
        busy = [sum(loads[place] for place in hand) for hand in hands]
    return [sorted(hand, key=lambda place: -loads[place]) for hand in hands]


def _exchange(giver: list[int], taker: list[int], given: int, back: int | None) -> None:
    giver.remove(given)
    taker.append(given)
    if back is not None:
        taker.remove(back)
        giver.append(back)


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
            try:
                begun = [pool.submit(job) for job in jobs]
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
