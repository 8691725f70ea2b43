"""Which client is on which node, as nodes themselves say.

Flower's node numbers are drawn at random; who a client is, its node knows from its own settings.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import ConfigDict, TypeAdapter, ValidationError

from atlas.config.federation import FlowerSettings
from atlas.engines.flower.post import Post
from atlas.engines.flower.records import Parcel, Value
from atlas.federation.clients import DataFacts
from atlas.federation.exchange.transport import Failure, TaskName

HELLO = "hello"
"""The task by which a node is asked who is on it."""
PAUSE = 1.0
"""Seconds between looks for nodes that are awaited."""
AGAIN = 30.0
"""Seconds until a node that could not answer is asked again who is on it."""
_Told = TypeAdapter(dict[str, DataFacts], config=ConfigDict(strict=True, allow_inf_nan=False))


@dataclass
class Roll:
    """The clients of a run and the nodes that have said hello.

    Attributes:
        post: The way to nodes.
        clients: Who is expected.
        settings: How long is waited, and for how many.
        common: What every node is told with every task.
        note: Called with what a user should know.
        told: What nodes told of their clients' data.
    """

    post: Post
    clients: Sequence[str]
    settings: FlowerSettings
    common: Callable[[], dict[str, Value]]
    note: Callable[[str], None]
    told: dict[str, DataFacts] = field(default_factory=dict)
    _nodes: dict[str, int] = field(default_factory=dict)
    _met: set[int] = field(default_factory=set)
    _later: dict[int, float] = field(default_factory=dict)

    def facts(self) -> dict[str, Value]:
        """What every node must be told beside its task."""
        return self.common()

    def find(self, clients: list[str], task: TaskName) -> dict[str, int]:
        """The nodes of clients that are there; before a fit, a quorum of them is waited for.

        Raises:
            RuntimeError: There are too few.
        """
        least = needed(self.settings, len(clients)) if task == "fit" else 0
        found = self._wait(clients, least)
        if len(found) < least:
            raise RuntimeError(
                f"{len(found)} of {len(clients)} clients are there after {self.settings.wait:g} "
                f"seconds, and flower.quorum {self.settings.quorum:g} needs {least}; start their "
                "nodes and resume the run"
            )
        return found

    def gather(self, least: int) -> None:
        """Wait for all clients, as a run does before it asks any.

        Args:
            least: With fewer there is no run.

        Raises:
            RuntimeError: There are fewer.
        """
        found = self._wait(self.clients, len(self.clients))
        missing = sorted(set(self.clients) - set(found))
        if len(found) < least:
            raise RuntimeError(
                f"no node has come for {', '.join(missing)} within {self.settings.wait:g} seconds "
                "(flower.wait); start their nodes and resume the run"
            )

    def _wait(self, clients: Sequence[str], least: int) -> dict[str, int]:
        began, said = time.monotonic(), False
        while True:
            found = self._present(clients)
            if len(found) >= least or time.monotonic() - began >= self.settings.wait:
                return found
            if not said:
                self.note(f"waiting for nodes: {len(found)} of {len(clients)} clients are there")
                said = True
            time.sleep(PAUSE)

    def _present(self, clients: Sequence[str]) -> dict[str, int]:
        online = set(self.post.grid.get_node_ids())
        self._met &= online  # one that comes back may be another machine with the same key
        now = time.monotonic()
        new = [node for node in sorted(online - self._met) if self._later.get(node, 0.0) <= now]
        if new:
            self._greet(new, online)
        return {c: self._nodes[c] for c in clients if self._nodes.get(c) in online}

    def _greet(self, nodes: Sequence[int], online: set[int]) -> None:
        parcel = Parcel({**self.facts(), "client": "", "tasks": [HELLO]}, [b""])
        patient = replace(self.post, deadline=max(30.0, self.settings.wait))
        answers = patient.exchange({str(node): (node, parcel) for node in nodes}, HELLO)
        for node in nodes:
            told = read_hello(answers[str(node)])
            if isinstance(told, Failure):
                self.note(f"node {node}: {told.reason}")
                self._later[node] = time.monotonic() + AGAIN
                continue
            self._met.add(node)
            self._enter(node, told, online)

    def _enter(self, node: int, told: Mapping[str, DataFacts], online: set[int]) -> None:
        for client, facts in told.items():
            before = self._nodes.get(client)
            if client not in self.clients:
                self.note(f"node {node} has a client {client!r} that is not of this run")
            elif before is not None and before != node and before in online:
                self.note(f"node {node} has a client {client!r} that is on node {before} already")
            else:
                self._nodes[client], self.told[client] = node, facts


def needed(settings: FlowerSettings, count: int) -> int:
    """How many of so many clients make a quorum."""
    return max(1, math.ceil(settings.quorum * count - 1e-9))


def write_hello(told: Mapping[str, DataFacts]) -> bytes:
    """What a node says of its clients."""
    return _Told.dump_json(dict(told))


def read_hello(answer: Parcel | Failure) -> dict[str, DataFacts] | Failure:
    """What a node said, if it is what a node may say."""
    if isinstance(answer, Failure):
        return answer
    failed = answer.facts.get("failed")
    if failed != [""]:
        reason = failed[0] if isinstance(failed, list) and failed else "not an answer"
        return Failure(str(reason))
    try:
        return _Told.validate_json(answer.payloads[0] if answer.payloads else b"", strict=True)
    except ValidationError as error:
        return Failure(f"not a hello: {error.error_count()} facts are wrong")
    except (ValueError, json.JSONDecodeError) as error:
        return Failure(f"not a hello: {type(error).__name__}")
