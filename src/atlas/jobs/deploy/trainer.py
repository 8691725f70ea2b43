"""The resident trainer of a node: keeps backbone and clients warm from one message to the next.

It is started by the first message of a run and ends with the node. Whatever a client becomes is on
the disk before it is answered, so that a trainer can be killed at any moment.
"""

from __future__ import annotations

import hashlib
import json
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from atlas.build.federation import Federation
from atlas.build.remote import build_node
from atlas.config.federation import FederationConfig
from atlas.config.load import parse_resolved
from atlas.config.node import load_node
from atlas.engines.flower.link import listen
from atlas.engines.flower.records import Parcel, RecordError
from atlas.engines.flower.roll import HELLO, write_hello
from atlas.engines.flower.transport import answer_parcel
from atlas.errors import InputError
from atlas.federation.exchange.message import MessageError, decode, encode
from atlas.federation.exchange.transport import Failure, Reply, TaskName
from atlas.jobs.deploy.node_disk import ClientDisk
from atlas.jobs.federation.own_data import data_facts
from atlas.jobs.runner import use_threads

STATES = "state"
MOVES: tuple[TaskName, ...] = ("fit", "deliver")
"""Tasks of a round that change a client."""
SERVERS_OWN = ("save", "load")
"""Tasks that no server may ask of a client on a node: its state stays here."""


@dataclass
class RunHere:
    """One run as a node has it.

    Attributes:
        name: The run's own name.
        settings: As the server sent them.
        federation: The node's clients.
        identity: What they were begun with.
        start: Every client's state before anything was asked of it.
        settled: The server's life, and the round it goes on from, that each client follows.
    """

    name: str
    settings: str
    federation: Federation
    identity: str
    start: dict[str, Reply]
    settled: dict[str, tuple[str, int]] = field(default_factory=dict)


class NodeTrainer:
    """Answers parcels for the clients of a node.

    Args:
        folder: The node's, with its settings.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = load_node(folder)
        use_threads(self.node.threads)
        self._run: RunHere | None = None

    def answer(self, parcel: Parcel) -> Parcel:
        """Do what a parcel asks for; whatever goes wrong is told to the server, and to the log."""
        try:
            run = self._open(parcel)
            if parcel.texts("tasks") == [HELLO]:
                return Parcel({"failed": [""]}, [write_hello(data_facts(run.federation))])
            life = (parcel.text("session"), parcel.number("after"))

            def answer(task: TaskName, client: str, payload: bytes) -> Reply:
                return self._answer(run, life, task, client, payload)

            return answer_parcel(parcel, answer)
        except (InputError, RecordError, MessageError, OSError, RuntimeError, ValueError) as error:
            traceback.print_exc()
            return _refusal(parcel, f"{type(error).__name__}: {error}")

    def _open(self, parcel: Parcel) -> RunHere:
        """The run that a parcel is of; built when it is a new one, or told otherwise than before.

        Raises:
            InputError: Its settings ask for what cannot be had here.
        """
        name, settings = parcel.text("run"), parcel.text("settings")
        known = self._run
        if known is not None and (known.name, known.settings) == (name, settings):
            return known
        self._run = None  # gives its memory back before the next one is loaded
        config = parse_resolved(settings, "the server's settings")
        if not isinstance(config, FederationConfig):
            raise InputError(f"kind: {config.kind}; allowed on a node: federation")
        federation = build_node(config, self.node)
        identity = hashlib.sha256(json.dumps(federation.identity, sort_keys=True).encode())
        start = federation.engine.ask("save", dict.fromkeys(federation.holders, encode({}, {})))
        self._run = RunHere(name, settings, federation, identity.hexdigest(), start)
        return self._run

    def _answer(
        self, run: RunHere, life: tuple[str, int], task: TaskName, client: str, payload: bytes
    ) -> Reply:
        if client not in self.node.clients:
            return Failure("not a client of this node")
        if task in SERVERS_OWN:
            return Failure(f"{task}: the state of a client stays on its node")
        disk = ClientDisk.open(self.folder / STATES, run.name, client)
        disk.check_identity(run.identity)
        engine = run.federation.engine
        try:
            if run.settled.get(client) != life:
                disk.go_on(*life)
                _settle(run, client, disk)
                run.settled[client] = life
            reply = engine.ask(task, {client: payload})[client]
            if task == "assign" and isinstance(reply, bytes):
                disk.grant(payload)
                _settle(run, client, disk)  # a server that resumes grants again what it once did
            if task in MOVES:
                saved = engine.ask("save", {client: encode({}, {})})[client]
                number = decode(payload).facts.get("round")
                if isinstance(saved, bytes) and type(number) is int:
                    disk.save(number, saved)
        except BaseException:
            # Memory and disk may differ now: the next message starts from the disk.
            run.settled.pop(client, None)
            raise
        return reply


def _settle(run: RunHere, client: str, disk: ClientDisk) -> None:
    """Make a client what the disk says it is, whatever it is now.

    Raises:
        RuntimeError: What is on the disk does not fit the client.
    """
    engine, start = run.federation.engine, run.start[client]
    granted, found = disk.granted, disk.newest()
    if granted is not None:
        _must(engine.ask("assign", {client: encode({}, granted)})[client])
    state = start if found is None and granted is None else found
    if isinstance(state, bytes):
        _must(engine.ask("load", {client: state})[client])


def _must(reply: Reply) -> None:
    if isinstance(reply, Failure):
        raise RuntimeError(f"what was kept does not fit: {reply.reason}")


def _refusal(parcel: Parcel, reason: str) -> Parcel:
    count = max(1, len(parcel.payloads))
    return Parcel({"failed": [reason] * count}, [b""] * count)


def main() -> None:
    """Serve the node of the folder given, until the process given ends."""
    folder, process = Path(sys.argv[1]), int(sys.argv[2])
    listen(folder, process, NodeTrainer(folder).answer)


if __name__ == "__main__":
    main()
