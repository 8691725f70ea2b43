"""From settings to devices: who trains on what, and what that leaves for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atlas.config.capacity import PROFILES, DeviceSettings
from atlas.config.federation import FederationConfig
from atlas.config.messages import nearest
from atlas.engines.local.groups import Group
from atlas.errors import InputError
from atlas.federation.batching.backbone import Backbone
from atlas.federation.capacity.grant import Site
from atlas.federation.clients import ClientData


def deal_devices(config: FederationConfig, clients: Sequence[ClientData]) -> list[ClientData]:
    """Clients that name no device get one of `ranks.devices` in turn, within their task.

    Every task so has a mixture of devices, and what a task needs is not told by what it runs on.
    """
    names, dealt = config.ranks.devices, []
    counts: dict[str, int] = {}
    for client in clients:
        place = counts.get(client.task.name, 0)
        counts[client.task.name] = place + 1
        device = client.device or (names[place % len(names)] if names else "")
        dealt.append(replace(client, device=device))
    return dealt


def find_sites(config: FederationConfig, groups: Sequence[Group]) -> dict[str, Site]:
    """Where every client trains; empty if ranks are fixed.

    Raises:
        InputError: If a device is unknown, or a client has neither device nor budget.
    """
    if config.ranks.method == "fixed" and config.split.point != "auto":
        return {}
    known = {**PROFILES, **config.devices}
    sites = {}
    for group in groups:
        for member in group.arms["held"].members:
            device = group.holders[member.id].data.device
            sites[member.id] = Site(
                device=device,
                limits=_limits(config, known, member.id, device),
                footprint=group.model.backbone.size,
                layout=group.model.layout,
                member=member,
                first_block=group.model.first_block,
                batch=config.train.batch,
            )
    return sites


def fixed_splits(
    config: FederationConfig, backbone: Backbone, clients: Sequence[str]
) -> dict[str, int]:
    """The split point the settings give every client; empty if they give none.

    Raises:
        InputError: If it leaves no block to the server.
    """
    point = config.split.point
    if point is None or point == "auto":
        return {}
    if point >= backbone.depth:
        raise InputError(
            f"split.point: {point} given, but {backbone.name} has {backbone.depth} blocks, of "
            f"which the server runs at least one; allowed: 1 to {backbone.depth - 1}, auto, null"
        )
    return dict.fromkeys(clients, point)


def _limits(
    config: FederationConfig, known: dict[str, DeviceSettings], client: str, device: str
) -> DeviceSettings:
    if device in known:
        return known[device]
    if device:
        near = nearest(device, known)
        hint = f"did you mean {near}? " if near else ""
        raise InputError(
            f"client {client}: unknown device {device!r}; {hint}devices: {', '.join(sorted(known))}"
        )
    if config.ranks.budget is None:
        raise InputError(
            f"nothing says what client {client} can hold, but {_asker(config)} depends on it; "
            "set ranks.budget, ranks.devices or the client's device"
        )
    return DeviceSettings(memory_mb=config.ranks.budget, room=None, largest_rank=None)


def _asker(config: FederationConfig) -> str:
    method = config.ranks.method
    return "split.point: auto" if method == "fixed" else f"ranks.method: {method}"
