"""Flower's simulation in this process: its state, its grid, its client apps, a node per client.

Flower's own backend starts processes by Ray. This one runs client apps where the backbone already
is, so that nothing is loaded twice and nothing is started.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Queue
from typing import cast

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import RUN_ID_NUM_BYTES, TASK_ID_NUM_BYTES
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend import Backend
from flwr.server.superlink.fleet.vce.metrics import VceMetrics
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.server.superlink.linkstate.utils import generate_rand_int_from_bytes
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from atlas.engines.flower.post import Post
from atlas.engines.flower.records import Value, pack, unpack
from atlas.engines.flower.transport import FlowerTransport, Rider, alone, answer_parcel
from atlas.federation.exchange.transport import Reply, TaskName, Transport

PARTITION = "partition-id"
"""The entry of a node's config by which Flower's simulation tells nodes apart."""


def simulate(engine: Transport, clients: Sequence[str], rider: Rider = alone) -> FlowerTransport:
    """Put every client of an engine on a node of Flower's simulation.

    Args:
        engine: Does the clients' work, one client at a time.
        clients: Who gets a node.
        rider: What goes along with a task; see `FlowerTransport`.

    Returns:
        The way to them; once nobody holds it any more, the simulation ends.
    """
    work = _Work(engine, sorted(clients))
    runtime = _Runtime(work.app(), len(clients))
    transport = _Simulated(runtime, work, rider)
    weakref.finalize(transport, runtime.bell.set)
    return transport


class _Simulated(FlowerTransport):
    """A `FlowerTransport` that raises what its clients raise: settings are wrong, or a bug."""

    def __init__(self, runtime: _Runtime, work: _Work, rider: Rider) -> None:
        super().__init__(runtime.post, _Numbered(work.clients, runtime.nodes), rider)
        self._work = work

    def ask(self, task: TaskName, payloads: Mapping[str, bytes]) -> dict[str, Reply]:
        replies = super().ask(task, payloads)
        if self._work.raised:
            raise self._work.raised.pop()
        return replies


class _Numbered:
    """Clients by the number of their node."""

    def __init__(self, clients: Sequence[str], nodes: Sequence[int]) -> None:
        self._nodes = dict(zip(clients, nodes, strict=True))

    def find(self, clients: list[str], task: TaskName) -> dict[str, int]:
        return {client: self._nodes[client] for client in clients if client in self._nodes}

    def facts(self) -> dict[str, Value]:
        return {}


class _Work:
    """What client apps do: ask the engine, as the client whose node they are on."""

    def __init__(self, engine: Transport, clients: Sequence[str]) -> None:
        self.engine, self.clients = engine, clients
        self.raised: list[Exception] = []

    def app(self) -> ClientApp:
        app = ClientApp()
        app.query()(self._asked)
        return app

    def _asked(self, message: Message, context: Context) -> Message:
        own = self.clients[int(context.node_config[PARTITION])]

        def answer(task: TaskName, client: str, payload: bytes) -> Reply:
            if client != own:
                raise RuntimeError(f"a message for {client} came to {own}")
            return self.engine.ask(task, {client: payload})[client]

        try:
            return Message(pack(answer_parcel(unpack(message.content), answer)), reply_to=message)
        except Exception as error:
            self.raised.append(error)
            raise


class _InProcess(Backend):  # type: ignore[misc]
    """Runs client apps one after another, in the thread that brings their messages."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__({})
        self._app = app

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        self._app = app_fn()

    @property
    def num_workers(self) -> int:
        return 1

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None:
        pass

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        return self._app(message, context), context


class _Bell(threading.Event):
    """Tells Flower's threads to stop, and wakes the one that looks for messages.

    It looks, then waits on this for a tenth of a second, which is long beside a small model's work.
    """

    def __init__(self) -> None:
        super().__init__()
        self._news = threading.Event()

    def ring(self) -> None:
        self._news.set()

    def set(self) -> None:
        super().set()
        self._news.set()

    def wait(self, timeout: float | None = None) -> bool:
        self._news.wait(timeout)
        self._news.clear()
        return self.is_set()


class _RingingGrid(InMemoryGrid):  # type: ignore[misc]
    """Flower's grid in memory, which says that it has messages."""

    def __init__(self, factory: LinkStateFactory, bell: _Bell) -> None:
        super().__init__(factory)
        self._bell = bell

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found: Iterable[str] = super().push_messages(messages)
        self._bell.ring()
        return found


class _Runtime:
    """Flower's simulation runtime with nodes and one run, on threads of this process."""

    def __init__(self, app: ClientApp, count: int) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # failures are told by answers
        self.bell = _Bell()
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        run = Run.create_empty(run_id=generate_rand_int_from_bytes(RUN_ID_NUM_BYTES))
        run.primary_task_id = task = generate_rand_int_from_bytes(TASK_ID_NUM_BYTES)
        run.federation_id = NOOP_FEDERATION_ID
        state = cast(InMemoryLinkState, factory.state())
        state.run_ids[run.run_id] = RunRecord(run=run)
        state.task_store[task] = Task(task_id=task, run_id=run.run_id)
        places = vce_api._register_nodes(count, factory)
        self.nodes = sorted(places, key=places.__getitem__)
        stores = vce_api._register_node_info_stores(places, run)
        grid = _RingingGrid(factory, self.bell)
        grid.set_run(run)
        self.post = Post(grid, run.run_id, task)
        asked: Queue[Message] = Queue()
        answered: Queue[Message] = Queue()
        backend, bell = _InProcess(app), self.bell
        for target, given in (
            (vce_api.add_messages_to_queue, (state, asked, places, bell)),
            (vce_api.worker, (asked, answered, stores, backend, bell, VceMetrics())),
            (vce_api.put_message_into_state, (state, answered, bell)),
        ):
            thread = threading.Thread(target=target, args=given, daemon=True)
            thread.start()
            _RUNNING[thread] = bell


_RUNNING: weakref.WeakKeyDictionary[threading.Thread, _Bell] = weakref.WeakKeyDictionary()


@atexit.register
def _stop_all() -> None:
    """A process must not end under threads that are still in torch or Flower."""
    for bell in list(_RUNNING.values()):
        bell.set()
    for thread in list(_RUNNING):
        thread.join()
