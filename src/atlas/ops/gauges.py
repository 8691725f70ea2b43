"""Many clients at a time: the leading part of a mixture in each client's own gauge.

`ops.lowrank.nearest_gauge` says what is wanted and why; it is also what is called for the few
clients whose mixture has fewer dimensions than they have ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.ops.lowrank.factors import nearest_gauge, turned_into
from atlas.ops.lowrank.leading import Leading
from atlas.ops.span import Layer

TOGETHER = 512
"""Clients settled at a time."""


def receive(leading: Leading, which: Tensor, held: Layer) -> tuple[Tensor, Tensor]:
    """Cut mixtures to their receivers' ranks, in the gauge nearest what each holds.

    Args:
        leading: Of k mixtures.
        which: The mixture each of c clients receives [c].
        held: Those clients' own factors, ranks and scales.

    Returns:
        New A [c, R, d_in] and B [c, d_out, R] in the dtype held, zero beyond each rank.
    """
    new_a, new_b = torch.zeros_like(held.a), torch.zeros_like(held.b)
    resolved = (leading.sizes > 0).long().cumprod(1).sum(1)[which]
    for rank in torch.unique(held.ranks).tolist():
        whole = (held.ranks == rank) & (resolved >= rank)
        for clients in torch.split(torch.nonzero(whole).flatten(), TOGETHER):
            part = Leading(*(value[which[clients], ..., :rank] for value in leading))
            a, b = _nearest_gauges(part, held.a[clients, :rank].to(torch.float64))
            scale = held.scales[clients].to(b)[:, None, None]
            new_a[clients, :rank] = a.to(new_a.dtype)
            new_b[clients, :, :rank] = (b / scale).to(new_b.dtype)
    for k in torch.nonzero(resolved < held.ranks).flatten().tolist():
        rank = int(held.ranks[k])
        own = held.a[k, :rank].to(torch.float64)
        u, s, v = _factors(leading, int(which[k]), rank)
        a, b = nearest_gauge(u, s, v, own)
        new_a[k, :rank] = a.to(new_a.dtype)
        new_b[k, :, :rank] = (b / held.scales[k]).to(new_b.dtype)
    return new_a, new_b


def _nearest_gauges(part: Leading, own: Tensor) -> tuple[Tensor, Tensor]:
    """`nearest_gauge` of c clients whose mixtures have all their dimensions.

    Args:
        part: Cut to the clients' rank r, one mixture for each client.
        own: What they hold [c, r, d_in].
    """
    gauge, inverse = turned_into(part.right, own, part.sizes[:, 0])
    return gauge @ part.right.mT, part.image @ inverse


def _factors(leading: Leading, row: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """U, s and V of one mixture, filled up with zeros to `rank` columns."""
    right, image, sizes = (value[row, ..., :rank] for value in leading)
    short = rank - sizes.shape[0]
    right, image, sizes = (torch.nn.functional.pad(x, (0, short)) for x in (right, image, sizes))
    return (
        torch.where(sizes > 0, image / sizes.clamp_min(torch.finfo(sizes.dtype).tiny), 0.0),
        sizes,
        right,
    )
