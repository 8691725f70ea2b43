"""Sending parcels to nodes and waiting for what they answer, over a Flower grid."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from atlas.engines.flower.records import Parcel, RecordError, pack, unpack
from atlas.federation.exchange.transport import Failure

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25
"""Seconds between looks for answers: short at first, for what is answered at once."""
GRACE = 1.0
"""Seconds after the deadline for which Flower keeps a message, so that we say first it is late."""
LONGEST_REASON = 300
"""Letters of what a node says went wrong."""


@dataclass(frozen=True)
class Post:
    """One run's way to nodes.

    Attributes:
        grid: Flower's.
        run: Flower's number of the run; messages are made in its name.
        task: Flower's number of the task that makes them.
        deadline: Seconds to wait for an answer; None for as long as it takes.
    """

    grid: Grid
    run: int
    task: int
    deadline: float | None = None

    def exchange(
        self, parcels: Mapping[str, tuple[int, Parcel]], about: str
    ) -> dict[str, Parcel | Failure]:
        """Send parcels to nodes; what each is answered with by the deadline.

        What comes later is never looked at: answers are fetched by the number of their question.

        Args:
            parcels: Node and parcel, by any name.
            about: What Flower's log calls them.
        """
        # Flower keeps these per process, and a process may have several runs.
        TaskIdentity.run_id, TaskIdentity.task_id = self.run, self.task
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        answers: dict[str, Parcel | Failure] = {}
        waiting: dict[str, str] = {}
        # A node that was away until then must not begin with it.
        ttl = None if self.deadline is None else self.deadline + GRACE
        for name, (node, parcel) in parcels.items():
            message = Message(pack(parcel), node, MessageType.QUERY, ttl=ttl, group_id=about)
            # One by one: all of them in one request may be more than Flower takes.
            found = [number for number in self.grid.push_messages([message]) if number]
            if found:
                waiting[found[0]] = name
            else:
                answers[name] = Failure("Flower does not know its node")
        return answers | self._collect(waiting)

    def _collect(self, waiting: dict[str, str]) -> dict[str, Parcel | Failure]:
        began, pause = time.monotonic(), FIRST_PAUSE
        answers: dict[str, Parcel | Failure] = {}
        while waiting:
            for message in self.grid.pull_messages(list(waiting)):
                name = waiting.pop(message.metadata.reply_to_message_id, None)
                if name is not None:
                    answers[name] = _read(message)
            spent = time.monotonic() - began
            if self.deadline is not None and spent >= self.deadline:
                break
            if waiting:
                time.sleep(pause)
                pause = min(LONGEST_PAUSE, 1.2 * pause)
        late = Failure(f"no answer within {self.deadline or 0:g} seconds")
        return answers | dict.fromkeys(waiting.values(), late)


def _read(message: Message) -> Parcel | Failure:
    if message.has_error():
        return Failure(f"Flower: {plain(message.error.reason or 'no reason told')}")
    try:
        return unpack(message.content)
    except RecordError as error:
        return Failure(str(error))


def plain(text: str) -> str:
    """A text of somebody else's, short and printable."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= LONGEST_REASON else f"{shown[:LONGEST_REASON]}..."
