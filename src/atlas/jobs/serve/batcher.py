"""Requests that come while the model is at work are answered in one pass after it.

One thread has the models: what waits when it is free goes through them together, whatever client
each text is for. Nobody waits for company, and under load passes fill by themselves.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from atlas.jobs.federation.client_models import Question

MOST_TOGETHER = 256
"""Texts that are answered in one go."""
MOST_WAITING = 128
"""Requests that may wait; those beyond are refused at once."""


class Answering(Protocol):
    """What answers questions; see `client_models.ClientModels`."""

    def answer(self, asked: Sequence[Question]) -> list[dict[str, Any]]:
        """Answers in the order of the questions."""
        ...


class Busy(Exception):  # noqa: N818 - no error: come again later
    """More requests wait than may."""


@dataclass(frozen=True)
class _Request:
    asked: Sequence[Question]
    answers: Future[list[dict[str, Any]]] = field(default_factory=Future)


class Batcher:
    """A thread that answers requests, as many together as wait."""

    def __init__(self, models: Answering, waiting: int = MOST_WAITING) -> None:
        self._models = models
        self._queue: queue.Queue[_Request | None] = queue.Queue(maxsize=waiting)
        self.requests = self.texts = self.passes = 0
        self._thread = threading.Thread(target=self._work, name="atlas-serve", daemon=True)

    def __enter__(self) -> Batcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Requests that nobody has begun to answer."""
        return self._queue.qsize()

    def ask(self, asked: Sequence[Question]) -> Future[list[dict[str, Any]]]:
        """Answers to come.

        Raises:
            Busy: Too many wait already.
        """
        request = _Request(asked)
        try:
            self._queue.put_nowait(request)
        except queue.Full:
            raise Busy from None
        return request.answers

    def _work(self) -> None:
        ended = False
        while not ended:
            first = self._queue.get()
            if first is None:
                break
            together, count = [first], len(first.asked)
            while count < MOST_TOGETHER:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    ended = True
                    break
                together.append(more)
                count += len(more.asked)
            self._answer([r for r in together if r.answers.set_running_or_notify_cancel()])

    def _answer(self, together: Sequence[_Request]) -> None:
        """All of them in one go; if that fails, one by one, so that only the culprit is told."""
        asked = [question for request in together for question in request.asked]
        if not asked:
            return
        self.passes += 1
        try:
            answers = self._models.answer(asked)
        except Exception as error:  # noqa: BLE001 - the thread must go on, and the asker is told
            if len(together) > 1:
                for request in together:
                    self._answer([request])
            else:
                together[0].answers.set_exception(error)
            return
        self.requests += len(together)
        self.texts += len(asked)
        start = 0
        for request in together:
            stop = start + len(request.asked)
            request.answers.set_result(answers[start:stop])
            start = stop
