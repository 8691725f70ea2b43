"""Work side by side: fair hands, one core each, errors that are not lost."""

import signal
import threading

import numpy as np
import pytest
import torch

from atlas.runs.cores import (
    DIVIDED,
    cores_for,
    dealt,
    evened,
    lending,
    shared_first,
    side_by_side,
    undivided_numpy,
)


def test_pieces_are_shared_until_one_would_leave_cores_idle():
    assert shared_first([1.0] * 4, 2) == 4
    assert shared_first([1.0] * 4, 1) == 0, "one core has nobody beside it"
    assert shared_first([9.0, 1.0], 2) == 0, "one core would wait for the other"
    assert shared_first([1.0] * 3, 2) == 2, "the third is divided"
    assert shared_first([1.0] * 9, 8) == 8, "seven cores would wait for the ninth piece"
    assert shared_first([1.0] * 16, 8) == 16
    assert shared_first([1.0], 2) == 0
    assert shared_first([], 2) == 0


def test_what_the_rest_takes_can_be_told():
    alike = [1.0] * 3
    assert shared_first(alike, 2, lambda place: 0.6 * (3 - place)) == 2
    dear = [1.6, 0.9, 0.9, 0.0]  # what one alone takes, divided, is nearly what two take
    assert shared_first(alike, 2, lambda place: dear[place]) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_other_number_of_shared_pieces_would_end_sooner(seed):
    draw = np.random.default_rng(seed)
    cores = int(draw.integers(2, 5))
    loads = sorted(draw.exponential(size=int(draw.integers(1, 9))), reverse=True)

    def ends(count):
        busy = [0.0] * cores
        for load in loads[:count]:
            busy[int(np.argmin(busy))] += load
        return max(busy) + sum(loads[count:]) / (cores * DIVIDED)

    best = min(ends(count) for count in range(len(loads) + 1))
    assert ends(shared_first(loads, cores)) == pytest.approx(best)


def weight(loads, extra=0.0):
    return lambda group: sum(loads[row] for row in group) + extra


def ends(loads, cores):
    """When all are done, if each core takes the next piece as soon as it is free."""
    busy = [0.0] * cores
    for load in loads:
        busy[int(np.argmin(busy))] += load
    return max(busy)


def test_groups_are_halved_where_a_core_would_wait():
    loads = [9.2, 9.2, 9.2, 3.7, 3.7, 3.7, 2.8, 2.8, 2.8]
    whole = [[0], [1], [2], [3, 4], [5], [6, 7, 8]]
    load = weight(loads, extra=0.3)
    found = evened(whole, load, 2)
    assert sorted(row for group in found for row in group) == list(range(9))
    assert [6, 7] in found and [8] in found, "three light rows were the last to end"
    assert len(found) == len(whole) + 1
    before = sorted(map(load, whole), reverse=True)
    assert ends(map(load, found), 2) < 0.97 * ends(before, 2)
    dear = weight(loads, extra=5.0)
    assert len(evened(whole, dear, 2)) == len(whole), "one more group would cost more than it saves"


def test_groups_that_end_together_stay_whole():
    assert evened([[0, 1], [2, 3]], weight([1.0] * 4), 2) == [[0, 1], [2, 3]]
    assert evened([[0, 1]], weight([1.0] * 2), 2) == [[0, 1]], "one alone is divided otherwise"
    assert evened([], weight([]), 2) == []


@pytest.mark.parametrize("seed", range(20))
def test_halving_never_makes_cores_end_later(seed):
    draw = np.random.default_rng(seed)
    loads, cores = draw.exponential(size=12), int(draw.integers(2, 5))
    cuts = np.sort(draw.choice(np.arange(1, 12), 4, replace=False))
    groups = [list(part) for part in np.split(np.arange(12), cuts)]
    load = weight(loads, extra=0.2)
    found = evened(groups, load, cores)
    assert sorted(row for group in found for row in group) == list(range(12))
    assert ends(map(load, found), cores) <= ends(sorted(map(load, groups), reverse=True), cores)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_dealt_nearly_as_well_as_can_be(seed):
    draw = np.random.default_rng(seed)
    loads = draw.exponential(size=9)
    found = dealt(loads, 2)
    assert sorted(place for hand in found for place in hand) == list(range(9))
    sides = (np.arange(2**9)[:, None] >> np.arange(9)) & 1
    best = np.maximum(sides @ loads, (1 - sides) @ loads).min()
    assert max(loads[hand].sum() for hand in found) <= 1.03 * best


def test_an_accelerator_is_one_core(two_cores):
    assert cores_for(torch.device("cpu")) == 2
    assert cores_for(torch.device("cuda")) == 1


def test_jobs_run_at_once_with_a_core_each(two_cores):
    meeting = threading.Barrier(2, timeout=30)

    def job():
        meeting.wait()  # passes only if both run at the same time
        return torch.get_num_threads(), threading.get_ident()

    found = side_by_side([job, job])
    assert [cores for cores, _ in found] == [1, 1]
    assert len({thread for _, thread in found} | {threading.get_ident()}) == 3
    assert torch.get_num_threads() == 2
    seen = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [2], "threads that come later must not inherit the single core"


def test_what_is_lent_is_never_in_two_hands(two_cores):
    lend, in_use, seen = lending(["a", "b"]), set(), set()

    def job():
        with lend() as thing:
            assert thing not in in_use
            in_use.add(thing)
            seen.add(thing)
            torch.randn(200, 200) @ torch.randn(200, 200)
            in_use.remove(thing)

    side_by_side([job] * 50)
    assert seen == {"a", "b"}


def test_results_keep_the_order_of_jobs():
    assert side_by_side([]) == []
    assert side_by_side([lambda value=value: value for value in range(5)]) == list(range(5))


def test_after_a_failure_those_begun_end_and_no_other_begins(two_cores):
    halted, ended = threading.Event(), []

    def fails():
        raise ValueError("no")

    def waits():
        ended.append(halted.wait(timeout=30))

    with pytest.raises(ValueError, match="no"):
        side_by_side([waits, fails, *[waits] * 20], halted)
    assert 1 <= len(ended) <= 2 and all(ended)
    assert torch.get_num_threads() == 2


@pytest.fixture
def interruptible():
    """Ctrl-C raises, also where a shell started the tests in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_does_not_wait_for_the_queue(two_cores):
    halted, ended = threading.Event(), []

    def job():
        if not ended:
            # A signal, and to the thread that waits: it must not sleep through it.
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        ended.append(halted.wait(timeout=30))

    with pytest.raises(KeyboardInterrupt):
        side_by_side([job] * 20, halted)
    assert len(ended) <= 4 and all(ended)


def test_numpy_divides_nothing_within_the_context_and_torch_may():
    from threadpoolctl import threadpool_info

    def counts():
        return {one["filepath"]: one["num_threads"] for one in threadpool_info()}

    cores = torch.get_num_threads()
    with undivided_numpy():
        within = [one for one in threadpool_info() if one["user_api"] == "blas"]
        assert within and all(one["num_threads"] == 1 for one in within)
        assert torch.get_num_threads() == cores
        before = counts()
        with undivided_numpy():
            pass
        assert counts() == before, "what was set outside comes back"
