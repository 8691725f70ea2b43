"""From settings to the devices that clients train on, and the blocks they run there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atlas.config.federation import FederationConfig
from atlas.config.messages import nearest
from atlas.config.plan import PROFILES, DeviceSettings
from atlas.engines.local.groups import ClientGroup
from atlas.errors import InputError
from atlas.federation.batching.backbone import Backbone
from atlas.federation.capacity.block_bytes import StepMeter
from atlas.federation.capacity.grant import Site


def find_sites(config: FederationConfig, groups: Sequence[ClientGroup]) -> dict[str, Site]:
    """Where every client trains; empty if ranks are fixed.

    Raises:
        InputError: If a device is unknown, or a client has neither device nor budget.
    """
    if not asks_devices(config):
        return {}
    known = {**PROFILES, **config.devices}
    sites = {}
    for group in groups:
        group.model.backbone.size  # noqa: B018 - refuses models whose steps cannot be planned
        meter = StepMeter(group.model)
        for member in group.arms["held"].members:
            device = group.holders[member.id].data.device
            limits = _limits(config, known, member.id, device)
            sites[member.id] = Site(device, limits, meter, member, config.train.batch)
    return sites


def asks_devices(config: FederationConfig) -> bool:
    """Whether anything depends on what clients' devices can hold."""
    return config.ranks.method != "fixed" or config.split.point == "auto"


def device_warnings(config: FederationConfig, device: str) -> list[str]:
    """What to beware of where a client names a device that nothing depends on."""
    if not device or asks_devices(config):
        return []  # one that is not known is refused where it counts
    known = {**PROFILES, **config.devices}
    if device not in known:
        return [_unknown_device(device, known)]
    return [
        f"device {device!r} limits nothing, since ranks.method is fixed; with "
        "ranks.method=importance its memory decides the ranks"
    ]


def _unknown_device(device: str, known: Iterable[str]) -> str:
    near = nearest(device, known)
    hint = f"did you mean {near}? " if near else ""
    return f"unknown device {device!r}; {hint}devices: {', '.join(sorted(known))}"


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
    if not backbone.cut_into_blocks:
        raise InputError(
            f"split.point: {point} given, but {backbone.name} runs as a whole; allowed: null"
        )
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
        own = any(entry.id == client and entry.device for entry in config.clients)
        key = f"client {client}: device" if own else "ranks.devices"
        raise InputError(f"{key}: {_unknown_device(device, known)}")
    if config.ranks.budget is None:
        raise InputError(
            f"nothing says what client {client} can hold, but {_asker(config)} depends on it; "
            "set ranks.budget, ranks.devices or the client's device"
        )
    return DeviceSettings(memory_mb=config.ranks.budget, room=None, largest_rank=None)


def _asker(config: FederationConfig) -> str:
    method = config.ranks.method
    return "split.point: auto" if method == "fixed" else f"ranks.method: {method}"
