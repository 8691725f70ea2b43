"""The link between a node's short-lived client apps and its resident trainer.

Flower starts a process for every message; a model would be loaded every time. So a client app hands
its parcel to a trainer that stays: a socket on this machine alone, whose port and token lie in a
file that only its owner can read. Whoever connects must know the token (HMAC, both ways). What goes
through is JSON and bytes.

Nothing heavy is imported here: a client app must start fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from filelock import FileLock

from atlas.engines.flower.records import Parcel, RecordError

ADDRESS_FILE, LOG_FILE, LOCK_FILE = "trainer.json", "trainer.log", "trainer.lock"
PRIVATE = 0o600
START_SECONDS = 120.0
"""How long a trainer may take until it listens."""
WATCH_SECONDS = 0.5
IDLE_SECONDS = 12 * 3600.0
"""A trainer that nobody asks anything for so long ends; the next message starts another."""
LARGEST = 1 << 31
MODULE = "atlas.jobs.deploy.trainer"


@dataclass(frozen=True)
class Address:
    """Where a trainer listens, and what to say."""

    port: int
    token: str
    process: int

    @classmethod
    def read(cls, folder: Path) -> Address | None:
        """What the folder of a node says; None where no trainer ever was."""
        try:
            found = json.loads((folder / ADDRESS_FILE).read_text(encoding="utf-8"))
            return cls(int(found["port"]), str(found["token"]), int(found["process"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        """Put it where only the owner can read it, whole or not at all."""
        draft = folder / f"{ADDRESS_FILE}.{self.process}"
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w") as file:
            json.dump({"port": self.port, "token": self.token, "process": self.process}, file)
        draft.replace(folder / ADDRESS_FILE)

    def connect(self) -> Connection:
        """A connection on which both sides have shown that they know the token."""
        return Client(("127.0.0.1", self.port), authkey=self.token.encode())


UNREACHED = (OSError, EOFError, AuthenticationError)


def ask_trainer(folder: Path, parcel: Parcel) -> Parcel:
    """Hand a parcel to the node's trainer, which is started if there is none.

    A trainer that dies over a parcel is not given it again: what it asks for may have been done.

    Raises:
        RuntimeError: The trainer cannot be started, or ended before it answered.
    """
    link = _reach(folder)
    try:
        with link:
            send(link, Parcel({**parcel.facts, "node-process": os.getppid()}, parcel.payloads))
            return receive(link)
    except UNREACHED as error:
        raise RuntimeError(
            f"the trainer ended before it answered ({type(error).__name__})"
        ) from error


def _reach(folder: Path) -> Connection:
    with FileLock(folder / LOCK_FILE):
        address = Address.read(folder)
        if address is not None:
            with contextlib.suppress(*UNREACHED):
                return address.connect()
        return _start(folder)


def _start(folder: Path) -> Connection:
    with (folder / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-m", MODULE, str(folder), str(os.getppid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it outlives this process
        )
    began = time.monotonic()
    while time.monotonic() - began < START_SECONDS:
        address = Address.read(folder)
        if address is not None and address.process == process.pid:
            with contextlib.suppress(*UNREACHED):
                return address.connect()
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"the trainer could not be started; see {LOG_FILE} in the node's folder")


def listen(folder: Path, node_process: int, answer: Callable[[Parcel], Parcel]) -> None:
    """Answer parcels, one after another, for as long as the node lives; never returns.

    Args:
        folder: The node's.
        node_process: The process whose end is the node's.
        answer: Does what a parcel asks for.
    """
    token = secrets.token_hex(32)
    watch = _Watch(node_process)
    with Listener(("127.0.0.1", 0), backlog=4, authkey=token.encode()) as door:
        Address(int(door.address[1]), token, os.getpid()).write(folder)
        threading.Thread(target=watch.run, daemon=True).start()
        while True:
            with contextlib.suppress(*UNREACHED, RecordError), door.accept() as link:
                parcel = receive(link)
                watch.busy(int(parcel.facts.get("node-process", node_process)))  # type: ignore[arg-type]
                send(link, answer(parcel))
                watch.done()


def end_with(process: int) -> None:
    """Have this process end, at once and whatever it is doing, when another one has."""
    watch = _Watch(process)
    watch.busy(process)  # however long it takes
    threading.Thread(target=watch.run, daemon=True).start()


class _Watch:
    """Ends this process once its node is gone, or nobody has asked for long."""

    def __init__(self, node_process: int) -> None:
        self._node, self._since, self._busy = node_process, time.monotonic(), False

    def busy(self, node_process: int) -> None:
        self._node, self._busy = node_process, True

    def done(self) -> None:
        self._busy, self._since = False, time.monotonic()

    def run(self) -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            idle = not self._busy and time.monotonic() - self._since > IDLE_SECONDS
            if idle or not _lives(self._node):
                os._exit(0)  # whatever is being done is of no use to anybody; the disk has the rest


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # one that has ended and that nobody has buried yet is gone, too
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
        return state.split()[0] != "Z"
    except (OSError, IndexError):
        return True


def send(link: Connection, parcel: Parcel) -> None:
    """Write a parcel: a line of JSON, then every payload."""
    head = {"facts": dict(parcel.facts), "payloads": len(parcel.payloads)}
    link.send_bytes(json.dumps(head).encode())
    for payload in parcel.payloads:
        link.send_bytes(payload)


def receive(link: Connection) -> Parcel:
    """Read what `send` wrote.

    Raises:
        RecordError: It is something else.
    """
    try:
        head = json.loads(link.recv_bytes(LARGEST))
        facts, count = head["facts"], head["payloads"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordError(f"not a parcel: {type(error).__name__}") from error
    if not isinstance(facts, dict) or type(count) is not int or not 0 <= count <= 16:
        raise RecordError("not a parcel")
    return Parcel(facts, [link.recv_bytes(LARGEST) for _ in range(count)])
