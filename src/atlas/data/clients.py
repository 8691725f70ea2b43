"""From settings to clients with data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from atlas.config.federation import DataSettings, FederationConfig
from atlas.config.messages import nearest, show
from atlas.data.dealing import dealt_clients
from atlas.data.examples import Source
from atlas.data.files import FileSource
from atlas.data.hub import HubSource
from atlas.data.own import own_clients
from atlas.data.synthetic import synthetic_clients
from atlas.data.tasks import BENCHMARKS, SYNTHETIC, find_task, task_registry
from atlas.errors import InputError
from atlas.federation.clients import ClientData, Task

SYNTHETIC_SOURCE = "synthetic"
OpenSource = Callable[[Path | None, Mapping[str, Path]], Source]
"""Opens a source, given `data.path` and the places of single tasks."""
SOURCES: dict[str, OpenSource] = {"files": FileSource, "hub": HubSource}


def load_clients(config: FederationConfig) -> list[ClientData]:
    """All clients of a federation, sorted by id.

    They come from the user's `clients` if there are any, from `data.source` otherwise. The same
    settings and seed always give the same clients, and a client's data does not depend on which
    other tasks take part.

    Raises:
        InputError: If a task is unknown, or data is missing, bad or too small.
    """
    _check_source(config.data.source)
    registry = task_registry(config.tasks)
    if config.clients:
        _check_unused(config)
        clients = own_clients(config, registry)
    elif config.data.source == SYNTHETIC_SOURCE:
        _check_once(config.data.tasks)
        _check_apart(config.data.tests)
        clients = synthetic_clients(config.data, config.seed)
    else:
        clients = _from_source(config, registry)
    return sorted(clients, key=lambda client: client.id)


def client_ids(config: FederationConfig) -> dict[str, str]:
    """The task of every client that `load_clients` would give, in its order, without their data."""
    data = config.data
    found = {client.id: client.task for client in config.clients}
    if not found:
        for task in data.tasks or SYNTHETIC:
            found |= {f"{task}-{n}": task for n in range(1, data.client_count(task) + 1)}
    return dict(sorted(found.items()))


def absent_clients(config: FederationConfig) -> list[ClientData]:
    """All clients of a federation as whoever sees none of their data knows them, sorted by id.

    Raises:
        InputError: If a task is unknown.
    """
    registry = task_registry(config.tasks)
    own = {entry.id: entry for entry in config.clients}
    found = []
    for name, task_name in client_ids(config).items():
        task = find_task(task_name, {**SYNTHETIC, **registry}, f"task of client {name}")
        device, backbone = (own[name].device, own[name].backbone) if name in own else ("", "")
        found.append(ClientData(name, task, (), (), (), task.name, device, backbone))
    return found


def _from_source(config: FederationConfig, registry: Mapping[str, Task]) -> list[ClientData]:
    data = config.data
    if not data.tasks:
        raise InputError(
            f"data.tasks: empty, but data.source {data.source!r} needs at least one task, "
            f"for example {', '.join(BENCHMARKS)}"
        )
    _check_made_up(data)
    _check_once(data.tasks)
    tasks = [find_task(name, registry, "data.tasks") for name in data.tasks]
    source = _open_source(config)
    return [client for task in tasks for client in dealt_clients(source, task, data, config.seed)]


def _open_source(config: FederationConfig) -> Source:
    elsewhere: dict[str, Path] = {
        name: settings.path.expanduser()
        for name, settings in config.tasks.items()
        if settings.path is not None
    }
    root = config.data.path.expanduser() if config.data.path is not None else None
    return SOURCES[config.data.source](root, elsewhere)


def register_source(name: str, opened: OpenSource) -> None:
    """Make a source of records known by a name for `data.source`; a name can be taken once."""
    if name in SOURCES or name == SYNTHETIC_SOURCE:
        raise ValueError(f"source {name!r} is registered twice")
    SOURCES[name] = opened


def _check_source(name: str) -> None:
    known = [SYNTHETIC_SOURCE, *SOURCES]
    if name not in known:
        guess = nearest(name, known)
        hint = f" did you mean {guess}?" if guess else ""
        raise InputError(f"data.source: {show(name)};{hint} allowed: {', '.join(known)}")


def _check_unused(config: FederationConfig) -> None:
    """Settings that would go unheard are refused."""
    if config.data.tasks:
        raise InputError(
            f"data.tasks: {', '.join(config.data.tasks)} given, but there are `clients`, each of "
            "which names its own task; leave data.tasks empty"
        )
    if config.data.clients_of:
        raise InputError(
            f"data.clients_of: {', '.join(config.data.clients_of)} given, but there are `clients`, "
            "so no task is dealt; leave data.clients_of empty"
        )
    _check_made_up(config.data)
    _check_apart(config.data.tests)


def _check_made_up(data: DataSettings) -> None:
    if data.noise:
        raise InputError(f"data.noise: {data.noise} given, but only synthetic data is made noisy")
    if data.difference:
        raise InputError(
            f"data.difference: {data.difference:g} given, but only synthetic clients are made to "
            "differ; others do by data.partition"
        )


def _check_apart(tests: str) -> None:
    if tests != "apart":
        raise InputError(
            f"data.tests: {tests!r} given, but only tasks read from files or the hub have test "
            "examples that clients could share; allowed: apart"
        )


def _check_once(tasks: list[str]) -> None:
    twice = sorted({name for name in tasks if tasks.count(name) > 1})
    if twice:
        raise InputError(f"data.tasks: {twice[0]!r} occurs twice; name each task once")
