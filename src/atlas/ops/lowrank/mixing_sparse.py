"""Mixing with sparse rows: each mixture from the few adapters in it, each distinct row once.

`mix_sparse` is `ops.mixing.mix_product` and `mix_linear` is `ops.mixing.mix_rows` for the W of
`ops.graph.sparse_rows`. Rows with like many slots are solved together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.ops.graph.sparse_rows import Edges, Places, SharedRows, keeps_own_row
from atlas.ops.lowrank.factors import Layer
from atlas.ops.lowrank.leading import Leading, leading_of_slots, receive

BATCH = 1 << 21
"""Numbers gathered at a time, of each factor."""


class SlotTable(NamedTuple):
    """Which rank slots make up each of k mixtures, q at most; the rest counts nothing.

    Attributes:
        slot: Client times R plus slot of the client [k, q].
        strength: Weight times scale of each [k, q], float64.
    """

    slot: Tensor
    strength: Tensor


def mix_sparse(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: SharedRows
) -> tuple[Tensor, Tensor]:
    """Mix scaled products, then cut to each client's rank in its own gauge.

    Args:
        a: [n, R, d_in], zero beyond each rank.
        b: [n, d_out, R], zero beyond each rank.
        ranks: Integer [n].
        scales: What turns B @ A into the layer's change, [n].
        weights: W.

    Returns:
        The new A and B, in the dtype given; e_k returns client k's bit for bit.
    """
    moving = np.nonzero(~keeps_own_row(weights))[0]
    found = mix_received(Layer(a, b, ranks, scales), weights.rows, weights.which[moving], moving)
    k = torch.from_numpy(moving).to(a.device)
    return a.index_copy(0, k, found[0]), b.index_copy(0, k, found[1])


def mix_received(
    layer: Layer, rows: Edges, which: Places, clients: Places
) -> tuple[Tensor, Tensor]:
    """The mixtures that some clients of a layer receive.

    Args:
        layer: Of n clients.
        rows: Weights of mixtures [m, n].
        which: The mixture each of c clients receives [c].
        clients: Who they are [c].

    Returns:
        Their new A [c, R, d_in] and B [c, d_out, R], in the dtype given.
    """
    device, place = layer.a.device, np.full(rows.shape[0], -1)
    new_a, new_b = (value.new_empty(len(clients), *value.shape[1:]) for value in layer[:2])
    for batch, leading in solve(layer, rows, np.unique(which)):
        place[batch] = np.arange(len(batch))
        some = np.nonzero(place[which] >= 0)[0]
        numbers = (place[which[some]], some, clients[some])
        row, c, k = (torch.from_numpy(part).to(device) for part in numbers)
        new_a[c], new_b[c] = receive(leading, row, Layer(*(value[k] for value in layer)))
        place[batch] = -1
    return new_a, new_b


def solve(layer: Layer, rows: Edges, wanted: Places) -> Iterator[tuple[Places, Leading]]:
    """The leading part of some mixtures of a layer, as many at a time as fit into `BATCH`.

    Args:
        layer: Of n clients.
        rows: Weights of all mixtures [m, n].
        wanted: Which of them.

    Yields:
        The mixtures solved, and their leading parts to the layer's largest rank R.
    """
    largest, width = layer.a.shape[1], max(layer.a.shape[2], layer.b.shape[1])
    ranks = layer.ranks.cpu().numpy()
    slots = rows.astype(bool).astype(np.int64) @ ranks
    order = wanted[np.argsort(slots[wanted], kind="stable")]
    factor_a = layer.a.flatten(0, 1)
    factor_b = layer.b.transpose(1, 2).flatten(0, 1)
    while len(order):
        # The largest last: what comes before it in a batch is filled up to its size.
        size = max(1, BATCH // (int(slots[order[-1]]) * width + 1))
        batch, order = order[-size:], order[:-size]
        table = slot_table(rows[batch], ranks, layer.scales.cpu().numpy(), largest)
        slot, strength = table.slot.to(layer.a.device), table.strength.to(layer.a.device)
        rows_of, columns_of = (part[slot].to(torch.float64) for part in (factor_a, factor_b))
        yield batch, leading_of_slots(rows_of, columns_of, strength, largest)


def slot_table(rows: Edges, ranks: Places, scales: NDArray[np.float64], largest: int) -> SlotTable:
    """The slots of every adapter in each of the mixtures `rows` [k, n]."""
    counts = ranks[rows.indices]
    client = np.repeat(rows.indices.astype(np.int64), counts)
    total = int(counts.sum())
    slot = client * largest + np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    strength = np.repeat(rows.data * scales[rows.indices], counts)
    mixture = np.repeat(np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)), counts)
    own = np.bincount(mixture, minlength=rows.shape[0])
    column = np.arange(total) - np.repeat(np.cumsum(own) - own, own)
    shape = (rows.shape[0], max(1, int(own.max(initial=0))))
    found = SlotTable(torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.float64))
    found.slot[mixture, column] = torch.from_numpy(slot)
    found.strength[mixture, column] = torch.from_numpy(strength)
    return found


def mix_linear(values: Tensor, weights: SharedRows) -> Tensor:
    """Plain linear mixture of stacked values [n, ...]; e_k rows come back bit for bit."""
    flat = values.reshape(values.shape[0], -1)
    mixed = linear_rows(flat, weights.rows).to(values.dtype)
    which, own = (torch.from_numpy(part) for part in (weights.which, keeps_own_row(weights)))
    kept = own.to(values.device)[:, None]
    return torch.where(kept, flat, mixed[which.to(values.device)]).reshape(values.shape)


def linear_rows(flat: Tensor, rows: Edges) -> Tensor:
    """Mixtures `rows` [m, n] of stacked values [n, f], in float64 [m, f]."""
    entries = rows.tocoo()
    where = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
    weight = torch.from_numpy(entries.data)
    matrix = torch.sparse_coo_tensor(where, weight, rows.shape, check_invariants=False)
    mixed: Tensor = torch.sparse.mm(matrix.to(flat.device), flat.to(torch.float64))
    return mixed
