"""A client's private state as one message, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from atlas.engines.local.groups import Group
from atlas.federation.exchange.message import Message, encode


def save_client(group: Group, client: str) -> bytes:
    """Everything a client needs to go on: adapters, dense changes, moments, accept."""
    tensors: dict[str, torch.Tensor] = {}
    for arm, cohort in group.arms.items():
        tensors |= {f"arm|{arm}|{name}": value for name, value in cohort.take(client).items()}
        dense = cohort.deltas.get(client, {})
        tensors |= {f"delta|{arm}|{module}": value for module, value in dense.items()}
    for arm, (moments, made) in group.moments.items():
        row = group.arms[arm].clients.index(client)
        for name, (first, second) in moments.items():
            tensors[f"first|{arm}|{name}"] = first[row].clone()
            tensors[f"second|{arm}|{name}"] = second[row].clone()
        tensors[f"made|{arm}|"] = made[row].reshape(1).clone()
    return encode(tensors, {"accept": group.accepts.get(client)})


def load_client(group: Group, client: str, message: Message) -> None:
    """Put a saved state back; raises ValueError if it does not fit this client."""
    adapters: dict[str, dict[str, torch.Tensor]] = {}
    dense: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in message.tensors.items():
        kind, arm, name = key.split("|", 2)
        if arm not in group.arms:
            raise ValueError(f"saved state has an arm {arm!r} that this run does not train")
        if kind == "arm":
            adapters.setdefault(arm, {})[name] = value
        elif kind == "delta":
            dense.setdefault(arm, {})[name] = value
        else:
            _load_moment(group, client, (kind, arm, name), value)
    for arm, adapter in adapters.items():
        expected = {name: part.shape for name, part in group.arms[arm].take(client).items()}
        if expected != {name: part.shape for name, part in adapter.items()}:
            raise ValueError(f"saved adapter of {client} does not fit its ranks and labels")
        group.arms[arm] = group.arms[arm].put({client: adapter})
    for arm, changes in dense.items():
        _load_dense(group, client, arm, changes)
    if message.facts["accept"] is not None:
        group.accepts[client] = message.facts["accept"]


def _load_dense(group: Group, client: str, arm: str, changes: Mapping[str, torch.Tensor]) -> None:
    cohort = group.arms[arm]
    sides = (cohort.layout.modules, cohort.layout.widths)
    shapes = {m: (d_out, d_in) for m, (d_in, d_out) in zip(*sides, strict=True)}
    if shapes != {module: tuple(value.shape) for module, value in changes.items()}:
        raise ValueError(f"saved dense change of {client} does not fit its modules")
    like = next(iter(cohort.tensors.values()))
    fitting = {module: value.to(like) for module, value in changes.items()}
    group.arms[arm] = replace(cohort, deltas={**cohort.deltas, client: fitting})


def _load_moment(group: Group, client: str, key: tuple[str, str, str], value: torch.Tensor) -> None:
    kind, arm, name = key
    cohort = group.arms[arm]
    row = cohort.clients.index(client)
    if arm not in group.moments:
        zeros = {k: (torch.zeros_like(v), torch.zeros_like(v)) for k, v in cohort.tensors.items()}
        device = next(iter(cohort.tensors.values())).device
        count = torch.zeros(len(cohort.clients), dtype=torch.long, device=device)
        group.moments[arm] = (zeros, count)
    moments, made = group.moments[arm]
    if kind == "made":
        made[row] = value[0]
    else:
        moments[name][0 if kind == "first" else 1][row] = value.to(moments[name][0])
