"""Mixtures that are added to a dense change of the client's own, after which its adapter restarts.

The backbone is shared and never written, so what a client merges is kept beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from atlas.engines.local.groups import Group
from atlas.federation.adapters.cohort import Adapter, Cohort, restart
from atlas.federation.mixing.deliver import Taken
from atlas.ops.lowrank.factors import delta, factor_dense


def merge_held(
    group: Group, offers: Mapping[str, Sequence[Adapter]], seed: int
) -> dict[str, Taken]:
    """Add the one mixture offered to each client's dense change; heads take their places.

    All sums are made before any is kept, so a failure leaves every client as it was.

    Raises:
        ValueError: If a mixture is not one of the group's modules.
    """
    held = group.arms["held"]
    given = {client: one[0] for client, one in offers.items() if one}
    merged = {client: _merged(held, client, adapter) for client, adapter in given.items()}
    heads = {
        client: {name: value for name, value in adapter.items() if name.startswith("head/")}
        for client, adapter in given.items()
    }
    fresh = restart(held, given, seed).put(heads)
    group.arms["held"] = replace(fresh, deltas={**held.deltas, **merged})
    return {client: Taken(0, 1.0 if one else 0.0) for client, one in offers.items()}


def _merged(cohort: Cohort, client: str, mixture: Adapter) -> dict[str, Tensor]:
    """A client's dense changes with a mixture of any rank added, summed in float64."""
    layout, before = cohort.layout, cohort.deltas.get(client, {})
    wanted = {f"lora_{factor}/{module}" for module in layout.modules for factor in "ab"}
    if wanted != {name for name in mixture if name.startswith("lora_")}:
        raise ValueError(f"what {client} is to merge is not a mixture of its modules")
    like = next(iter(cohort.tensors.values()))
    sums = {}
    for module in layout.modules:
        a = mixture[f"lora_a/{module}"].to(like.device, torch.float64)
        b = mixture[f"lora_b/{module}"].to(like.device, torch.float64)
        change = delta(a, b, layout.alpha / a.shape[0])
        if module in before:
            change = change + before[module]
        sums[module] = change.to(like.dtype)
    return sums


def whole_adapter(cohort: Cohort, client: str) -> Adapter:
    """All that a client adds to the backbone as one plain adapter, its scale alpha / rank.

    Where there is a dense change, it and the adapter are factored together, to the rank they have
    together in the precision they are held in.
    """
    adapter, layout = cohort.take(client), cohort.layout
    for module, dense in cohort.deltas.get(client, {}).items():
        a, b = adapter[f"lora_a/{module}"].double(), adapter[f"lora_b/{module}"].double()
        own = delta(a, b, layout.alpha / a.shape[0])
        a, b = factor_dense(dense.double() + own, torch.finfo(dense.dtype).eps)
        adapter[f"lora_a/{module}"] = a.to(dense.dtype)
        adapter[f"lora_b/{module}"] = (b * (a.shape[0] / layout.alpha)).to(dense.dtype)
    return adapter
