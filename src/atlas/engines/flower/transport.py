"""A `Transport` over Flower: every client is asked by a message to its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from atlas.engines.flower.post import Post, plain
from atlas.engines.flower.records import Parcel, RecordError, Value
from atlas.federation.exchange.transport import CONTRACTS, Failure, Reply, TaskName

Rider = Callable[[TaskName, bytes], tuple[TaskName, bytes] | None]
"""What will be asked of a client right after a task; it goes along in the same message."""


class Places(Protocol):
    """Which node a client is at."""

    def find(self, clients: list[str], task: TaskName) -> dict[str, int]:
        """The nodes of those clients that are there."""
        ...

    def facts(self) -> dict[str, Value]:
        """What every node must be told beside its task."""
        ...


def alone(task: TaskName, payload: bytes) -> None:
    """The rider of those who ask for one thing at a time."""


class FlowerTransport:
    """Asks clients on Flower's nodes, one message for each.

    A round trip costs seconds where nodes are machines. So what is known to be asked next, and
    changes nothing, rides along (`rider`): its answer is kept, and given when it is asked for in
    the same words before the client was asked to do anything else.

    Args:
        post: The way to nodes.
        places: Where clients are.
        rider: What goes along with a task.
    """

    def __init__(self, post: Post, places: Places, rider: Rider = alone) -> None:
        self.post = post
        self.places = places
        self.rider = rider
        self._kept: dict[str, tuple[TaskName, bytes, Reply]] = {}

    def ask(self, task: TaskName, payloads: Mapping[str, bytes]) -> dict[str, Reply]:
        """Run a task at clients on other nodes; see `Transport`."""
        replies: dict[str, Reply] = {}
        for client in sorted(payloads):
            if (kept := self._take(client, task, payloads[client])) is not None:
                replies[client] = kept
        asked = {client: payloads[client] for client in sorted(set(payloads) - set(replies))}
        if not asked:
            return replies
        nodes = self.places.find(list(asked), task)
        facts = self.places.facts()
        riders = {client: self.rider(task, asked[client]) for client in nodes}
        parcels = {}
        for client, node in nodes.items():
            along = riders[client]
            tasks: list[str] = [task] if along is None else [task, along[0]]
            carried = [asked[client]] if along is None else [asked[client], along[1]]
            parcels[client] = (node, Parcel({**facts, "client": client, "tasks": tasks}, carried))
        for client, answer in self.post.exchange(parcels, task).items():
            along = riders[client]
            first, *rest = _read(answer, 1 if along is None else 2)
            replies[client] = first
            if along is not None and rest and isinstance(first, bytes):
                self._kept[client] = (*along, rest[0])
        away = Failure("unknown client, or its node is away")
        return replies | dict.fromkeys(set(asked) - set(nodes), away)

    def _take(self, client: str, task: TaskName, payload: bytes) -> Reply | None:
        """The answer that came before it was asked for; any other task makes it worthless."""
        kept = self._kept.get(client)
        if kept is None:
            return None
        if (task, payload) == kept[:2]:
            return kept[2]
        if task not in CONTRACTS or CONTRACTS[task].changes:
            del self._kept[client]
        return None


def _read(answer: Parcel | Failure, count: int) -> list[Reply]:
    """What a node answered to each task of a parcel."""
    if isinstance(answer, Failure):
        return [answer]
    try:
        reasons = answer.texts("failed")
    except RecordError as error:
        return [Failure(str(error))]
    if len(reasons) != count or len(answer.payloads) != count:
        return [Failure(f"{len(reasons)} answers to {count} questions")]
    return [
        Failure(plain(reason)) if reason else payload
        for reason, payload in zip(reasons, answer.payloads, strict=True)
    ]


def answer_parcel(parcel: Parcel, answer: Callable[[TaskName, str, bytes], Reply]) -> Parcel:
    """Do what a parcel asks for, one task after another, on the client's side.

    Args:
        parcel: What came.
        answer: Does a task of a client with a payload.

    Raises:
        RecordError: It asks for nothing, or not in the way it should.
    """
    client, tasks = parcel.text("client"), parcel.texts("tasks")
    if not tasks or len(tasks) != len(parcel.payloads):
        raise RecordError(f"{len(tasks)} tasks with {len(parcel.payloads)} payloads")
    replies: list[Reply] = []
    for task, payload in zip(tasks, parcel.payloads, strict=True):
        if replies and isinstance(replies[-1], Failure):
            replies.append(Failure("what should have come before it failed"))
        else:
            replies.append(answer(task, client, payload))  # type: ignore[arg-type]
    failed = [
        reply.reason or "no reason" if isinstance(reply, Failure) else "" for reply in replies
    ]
    return Parcel({"failed": failed}, [r if isinstance(r, bytes) else b"" for r in replies])
