"""A federation whose clients are on other machines: the server's part, and a node's."""

from __future__ import annotations

from collections.abc import Collection

from atlas.build.federation import Federation, assemble
from atlas.build.plugins import load_plugins
from atlas.build.strategy import find_checked_strategy
from atlas.config.federation import FederationConfig
from atlas.config.load import dump_config
from atlas.config.node import NodeSettings
from atlas.data.clients import absent_clients, load_clients
from atlas.errors import InputError
from atlas.federation.clients import ClientData
from atlas.runs.events import Progress


def build_server(config: FederationConfig, progress: Progress | None = None) -> Federation:
    """The server's part: plan, cohorts and models, and no data of anybody.

    Raises:
        InputError: If anything the settings name cannot be had, or needs clients' data.
    """
    load_plugins(config.plugins)
    strategy = find_checked_strategy(config)
    if strategy.pool != "none":
        raise InputError(
            f"strategy: {strategy.name} trains on the data of several clients together, which is "
            "on different machines; allowed: any other"
        )
    federation = assemble(config, absent_clients(config), progress)
    federation.groups = []  # nobody trains here
    return federation


def sent_settings(config: FederationConfig) -> str:
    """What nodes are told of a run's settings: nothing that is a place on the server's disk."""
    tasks = {name: task.model_copy(update={"path": None}) for name, task in config.tasks.items()}
    nowhere = {"data": None, "test_data": None}
    changes = {
        "data": config.data.model_copy(update={"path": None}),
        "clients": [client.model_copy(update=nowhere) for client in config.clients],
        "tasks": tasks,
    }
    return dump_config(config.model_copy(update=changes))


def build_node(
    config: FederationConfig, node: NodeSettings, progress: Progress | None = None
) -> Federation:
    """A node's part: its own clients with their data, as the server's settings have them.

    Raises:
        InputError: If the settings ask for what the node does not allow, or have not its clients.
    """
    own = _own_settings(config, node)
    load_plugins(own.plugins)
    everybody = absent_clients(own)
    strange = sorted(set(node.clients) - {client.id for client in everybody})
    if strange:
        raise InputError(f"clients.{strange[0]}: not a client of this run")
    data = {client.id: client for client in _with_data(own, node) if client.id in node.clients}
    clients = [data.get(client.id, client) for client in everybody]
    return assemble(own, clients, progress, here=set(node.clients))


def _own_settings(config: FederationConfig, node: NodeSettings) -> FederationConfig:
    _check_allowed(config.plugins, node)
    if config.backbone.allow_hub and not node.allow_hub:
        raise InputError("backbone.allow_hub: true, which this node does not allow")
    changes = {
        "data": config.data.model_copy(update={"path": node.data}),
        "device": node.device,
        "threads": node.threads,
    }
    return config.model_copy(update=changes)


def _check_allowed(plugins: Collection[str], node: NodeSettings) -> None:
    for name in plugins:
        if name not in node.plugins:
            raise InputError(f"plugins: {name}, which this node does not allow")


def _with_data(config: FederationConfig, node: NodeSettings) -> list[ClientData]:
    """The clients of a node with their examples, and perhaps others."""
    if not config.clients:
        return load_clients(config)
    entries = []
    for entry in config.clients:
        file = node.clients.get(entry.id)
        if entry.id not in node.clients:
            continue
        if file is None:
            raise InputError(f"clients.{entry.id}: null, but it has no other data than a file")
        entries.append(
            entry.model_copy(update={"data": file, "test_data": node.tests.get(entry.id)})
        )
    return load_clients(config.model_copy(update={"clients": entries}))
