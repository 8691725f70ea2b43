"""Clients whose private state stays on the disk of their node.

What a run saves of such a client is the number of the round it is of. A server that goes on after
a round says so with everything it asks, and a client that is ahead of it goes back.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from atlas.config.federation import FlowerSettings
from atlas.engines.flower.roll import needed
from atlas.engines.flower.transport import FlowerTransport
from atlas.federation.exchange.message import MessageError, decode, encode
from atlas.federation.exchange.transport import Failure, Reply, TaskName


@dataclass
class Session:
    """One life of a server.

    Attributes:
        run: The run's own name, the same in all its lives.
        after: The round that this life goes on from.
        name: Drawn anew for each life.
    """

    run: str
    after: int = 0
    name: str = field(default_factory=lambda: secrets.token_hex(8))


class NodeStates:
    """A `Transport` to clients that keep their state on their nodes; see `Transport`.

    Args:
        inner: The way to clients.
        session: This life of the server.
        settings: How many must train.
    """

    def __init__(self, inner: FlowerTransport, session: Session, settings: FlowerSettings) -> None:
        self.inner, self.session, self.settings = inner, session, settings
        self._round = 0

    def ask(self, task: TaskName, payloads: Mapping[str, bytes]) -> dict[str, Reply]:
        """Run a task at clients on nodes.

        Raises:
            RuntimeError: Fewer than a quorum have trained.
        """
        if task == "save":
            return dict.fromkeys(payloads, encode({}, {"round": self._round}))
        if task == "load":
            return {client: self._go_on(payload) for client, payload in payloads.items()}
        if task in ("fit", "deliver") and payloads:
            self._round = int(decode(next(iter(payloads.values()))).facts["round"])
        replies = self.inner.ask(task, payloads)
        if task == "fit":
            self._check_quorum(replies)
        return replies

    def _go_on(self, receipt: bytes) -> Reply:
        """Nodes are told with every task; here it is only made sure that they are told this."""
        try:
            number = decode(receipt).facts["round"]
        except (MessageError, KeyError) as error:
            return Failure(f"not saved of a client on a node: {error}")
        if number != self.session.after:
            return Failure(f"saved after round {number}, not {self.session.after}")
        return encode({}, {})

    def _check_quorum(self, replies: Mapping[str, Reply]) -> None:
        least = needed(self.settings, len(replies))
        failed = {c: r.reason for c, r in sorted(replies.items()) if isinstance(r, Failure)}
        if len(replies) - len(failed) < least:
            reasons = "; ".join(f"{client}: {reason}" for client, reason in failed.items())
            raise RuntimeError(
                f"round {self._round}: {len(replies) - len(failed)} of {len(replies)} clients have "
                f"trained, and flower.quorum {self.settings.quorum:g} needs {least} ({reasons}); "
                "resume the run to try again"
            )
