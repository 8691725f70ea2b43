"""Ctrl-C that waits for the round in progress to be saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Whether the run was asked to stop.

    Attributes:
        requested: True after the first SIGINT or SIGTERM.
    """

    requested: bool = False


@contextlib.contextmanager
def stop_after_round(notify: Callable[[], None] | None = None) -> Iterator[StopRequest]:
    """Lets the first SIGINT or SIGTERM ask for a stop, and the second SIGINT interrupt at once.

    Outside the main thread signals cannot be handled; there the request is never set.

    Args:
        notify: Called once, when the stop is first asked for.

    Yields:
        The request, to be looked at between rounds.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    interrupts = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        del frame
        if notify is not None and not request.requested:
            notify()
        request.requested = True
        if number == signal.SIGINT:
            interrupts += 1
            if interrupts > 1:
                raise KeyboardInterrupt

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, handle)
            # A handler that was not set from Python reads as None and cannot be set again.
            stack.callback(signal.signal, number, signal.SIG_DFL if before is None else before)
        yield request
