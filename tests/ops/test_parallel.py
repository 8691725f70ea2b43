"""Work side by side: fair hands, one core each, errors that are not lost."""

import _thread
import threading

import pytest
import torch

from atlas.ops.parallel import cores_for, lending, side_by_side, worth_sharing


def test_sharing_is_worth_it_unless_one_piece_outweighs_the_rest():
    assert worth_sharing([1.0] * 4, 2)
    assert not worth_sharing([1.0] * 4, 1), "one core has nobody beside it"
    assert not worth_sharing([9.0, 1.0], 2), "one core would wait for the other"
    assert not worth_sharing([1.0] * 9, 8), "seven cores would wait for the ninth piece"
    assert worth_sharing([1.0] * 16, 8)
    assert not worth_sharing([1.0], 2)
    assert not worth_sharing([], 2)


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


def test_an_interrupt_does_not_wait_for_the_queue(two_cores):
    halted, ended = threading.Event(), []

    def job():
        if not ended:
            _thread.interrupt_main()
        ended.append(halted.wait(timeout=30))

    with pytest.raises(KeyboardInterrupt):
        side_by_side([job] * 20, halted)
    assert len(ended) <= 4 and all(ended)
