"""Ctrl-C ends after the round; a second one ends at once."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from atlas.runs.process import stop_after_round


def handlers():
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_asks(number):
    before = handlers()
    with stop_after_round() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
    assert handlers() == before


def test_the_second_interrupt_ends_at_once_and_restores_the_handlers():
    before = handlers()
    with pytest.raises(KeyboardInterrupt), stop_after_round() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("not interrupted")
    assert handlers() == before


def test_other_threads_leave_the_handlers_alone():
    before, seen = handlers(), []

    def work():
        with stop_after_round() as stop:
            seen.extend([handlers(), stop.requested])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, False]
