"""What clients get in turn within their task: devices and backbones.

Every task so has a mixture of each, and what a task needs is not told by what it runs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atlas.config.federation import FederationConfig
from atlas.data.clients import client_ids
from atlas.federation.clients import ClientData


def deal_devices(config: FederationConfig, clients: Sequence[ClientData]) -> list[ClientData]:
    """Clients that name no device get one of `ranks.devices` in turn, within their task."""
    dealt = _in_turn(config.ranks.devices, [client.task.name for client in clients], "")
    return [
        replace(client, device=client.device or device)
        for client, device in zip(clients, dealt, strict=True)
    ]


def deal_backbones(config: FederationConfig, clients: Sequence[ClientData]) -> list[ClientData]:
    """Clients that name no backbone get one of `backbone.deal` in turn, or else the common one."""
    tasks = [client.task.name for client in clients]
    dealt = _in_turn(config.backbone.deal, tasks, config.backbone.name)
    return [
        replace(client, backbone=client.backbone or name)
        for client, name in zip(clients, dealt, strict=True)
    ]


def backbone_names(config: FederationConfig) -> dict[str, str]:
    """The backbone of every client by its id, from the settings alone: no data is read."""
    ids = client_ids(config)
    dealt = _in_turn(config.backbone.deal, list(ids.values()), config.backbone.name)
    own = {entry.id: entry.backbone for entry in config.clients if entry.backbone}
    return {**dict(zip(ids, dealt, strict=True)), **own}


def _in_turn(names: Sequence[str], tasks: Sequence[str], otherwise: str) -> list[str]:
    """One of the names for each client, by its place among those of its task."""
    if not names:
        return [otherwise] * len(tasks)
    counts: dict[str, int] = {}
    dealt = []
    for task in tasks:
        place = counts.get(task, 0)
        counts[task] = place + 1
        dealt.append(names[place % len(names)])
    return dealt
