"""Mixing with sparse rows: each mixture from the few adapters in it, each distinct row once.

For the W of `ops.graph.sparse_rows`, `SPARSE_MIXERS` and `SPARSE_ROTATED` are the `MIXERS` and
`ROTATED` of `ops.lowrank.mixing`, `stack_sparse` is its `stack_factors` and `mix_linear` its
`mix_rows`. In product space rows with like many slots are solved together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.ops.graph.sparse_rows import Edges, Places, SharedRows, keeps_own_row
from atlas.ops.lowrank.factors import (
    Layer,
    rank_mask,
    span_of,
    squared_norms,
    svd_gauge,
    used_slots,
)
from atlas.ops.lowrank.gauge import mix_turned
from atlas.ops.lowrank.leading import Exact, Leading, leading_of_slots
from atlas.ops.lowrank.mixing import cut_for, decompose
from atlas.ops.lowrank.sources import (
    Recipe,
    beside,
    cut_mixtures,
    ingredients,
    joined,
    layer_rows,
    portions,
)

BATCH = 1 << 21
"""Numbers gathered at a time, of each factor."""
ALIKE = 0.8
"""Rows with at least this share of the slots of the largest are solved with it."""


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
    return mix_by_recipe(Layer(a, b, ranks, scales), weights, Recipe())


def mix_by_recipe(layer: Layer, weights: SharedRows, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """`mix_sparse`, with what is mixed and how it is cut as a recipe says."""
    moving = np.nonzero(~keeps_own_row(weights))[0]
    found = mix_received(layer, weights.rows, weights.which[moving], moving, recipe)
    k = torch.from_numpy(moving).to(layer.a.device)
    return layer.a.index_copy(0, k, found[0]), layer.b.index_copy(0, k, found[1])


def mix_received(
    layer: Layer, rows: Edges, which: Places, clients: Places, recipe: Recipe
) -> tuple[Tensor, Tensor]:
    """The mixtures that some clients of a layer receive.

    Args:
        layer: Of n clients.
        rows: Weights of mixtures [m, n].
        which: The mixture each of c clients receives [c].
        clients: Who they are [c].
        recipe: What is mixed beside the layer, and how it is cut.

    Returns:
        Their new A [c, R, d_in] and B [c, d_out, R], in the dtype given.
    """
    device, place = layer.a.device, np.full(rows.shape[0], -1)
    new_a, new_b = (value.new_empty(len(clients), *value.shape[1:]) for value in layer[:2])
    for batch, leading in solve(layer, rows, np.unique(which), recipe):
        place[batch] = np.arange(len(batch))
        some = np.nonzero(place[which] >= 0)[0]
        numbers = (place[which[some]], some, clients[some])
        row, c, k = (torch.from_numpy(part).to(device) for part in numbers)
        new_a[c], new_b[c] = cut_mixtures(leading, row, layer_rows(layer, k), recipe.cut)
        place[batch] = -1
    return new_a, new_b


def exact_mixtures(
    layer: Layer, rows: Edges, wanted: Places, recipe: Recipe, count: int | None
) -> Exact:
    """Some mixtures of a layer before they are cut, to `count` directions at most.

    Args:
        layer: Of n clients.
        rows: Weights of all mixtures [m, n].
        wanted: Which of them, in order.
        recipe: What is mixed beside the layer.
        count: As many as can matter; None: as many as there are.
    """
    if count is None:
        counts = beside(portions(rows[wanted], layer.ranks.cpu().numpy(), recipe))
        count = int(_slots(counts, joined(ingredients(layer, recipe))).max(initial=0))
    count = min(count, layer.a.shape[2], layer.b.shape[1])
    shape, like = len(wanted), layer.a.new_empty(0, dtype=torch.float64)
    found = Leading(
        like.new_zeros(shape, layer.a.shape[2], count),
        like.new_zeros(shape, layer.b.shape[1], count),
        like.new_zeros(shape, count),
    )
    energy = like.new_zeros(shape)
    for batch, slots in gather_slots(layer, rows, wanted, recipe):
        place = torch.from_numpy(np.searchsorted(wanted, batch)).to(like.device)
        for whole, part in zip(found, leading_of_slots(*slots, count), strict=True):
            whole[place, ..., : part.shape[-1]] = part
        columns = slots.columns * slots.strength[..., None]
        energy[place] = squared_norms(slots.rows, columns.mT)
    return Exact(found, energy)


class MixtureSlots(NamedTuple):
    """The rank slots of k mixtures, q at most, float64.

    Attributes:
        rows: [k, q, d_in].
        columns: [k, q, d_out].
        strength: What each counts [k, q].
    """

    rows: Tensor
    columns: Tensor
    strength: Tensor


def solve(
    layer: Layer, rows: Edges, wanted: Places, recipe: Recipe
) -> Iterator[tuple[Places, Leading]]:
    """The leading part of some mixtures of a layer; arguments as in `gather_slots`.

    Yields:
        The mixtures solved, and as much of them as the cut needs.
    """
    count = recipe.directions(layer)
    for batch, slots in gather_slots(layer, rows, wanted, recipe):
        yield batch, leading_of_slots(*slots, count)


def gather_slots(
    layer: Layer, rows: Edges, wanted: Places, recipe: Recipe
) -> Iterator[tuple[Places, MixtureSlots]]:
    """What some mixtures of a layer are made of, as many at a time as fit into `BATCH`.

    Args:
        layer: Of n clients.
        rows: Weights of all mixtures [m, n].
        wanted: Which of them.
        recipe: What is mixed beside the layer, and how it is cut.

    Yields:
        Which mixtures, and their slots.
    """
    rows = beside(portions(rows, layer.ranks.cpu().numpy(), recipe))
    layer = joined(ingredients(layer, recipe))
    largest, width = layer.a.shape[1], max(layer.a.shape[2], layer.b.shape[1])
    ranks = layer.ranks.cpu().numpy()
    slots = _slots(rows, layer)
    order = wanted[np.argsort(slots[wanted], kind="stable")]
    factor_a = layer.a.flatten(0, 1)
    factor_b = layer.b.transpose(1, 2).flatten(0, 1)
    while len(order):
        # The largest last: what comes before it in a batch is filled up to its size, and so costs
        # as much; few are filled up by much.
        most = int(slots[order[-1]])
        size = max(1, BATCH // (most * width + 1))
        size = min(size, int((slots[order] >= ALIKE * most).sum()))
        batch, order = order[-size:], order[:-size]
        table = slot_table(rows[batch], ranks, layer.scales.cpu().numpy(), largest)
        slot, strength = table.slot.to(layer.a.device), table.strength.to(layer.a.device)
        rows_of, columns_of = (part[slot].to(torch.float64) for part in (factor_a, factor_b))
        yield batch, MixtureSlots(rows_of, columns_of, strength)


def _slots(rows: Edges, layer: Layer) -> Places:
    """How many slots of a layer's clients are in each of some mixtures."""
    found: Places = rows.astype(bool).astype(np.int64) @ layer.ranks.cpu().numpy()
    return found


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


def mix_svd_sparse(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: SharedRows
) -> tuple[Tensor, Tensor]:
    """`mix_svd` with one span for each row, of the clients in it alone."""
    layer = Layer(a, b, ranks, scales)
    made = layer._replace(a=a.clone(), b=b.clone())
    moving = np.nonzero(~keeps_own_row(weights))[0]
    for row in np.unique(weights.which[moving]).tolist():
        mixed, shares = _entries(weights.rows, row, a.device)
        found = decompose(span_of(*(value[mixed] for value in layer)), shares)
        for k in moving[weights.which[moving] == row].tolist():
            cut_for(k, layer, found, svd_gauge, made)
    return made.a, made.b


def mix_factors_sparse(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: SharedRows
) -> tuple[Tensor, Tensor]:
    """`mix_factors`: A and scale * B apart; slots beyond a client's own rank are cut."""
    used = rank_mask(ranks, a.shape[1])
    new_a = torch.where(_own(weights, a), a, mix_linear(a, weights) * used[:, :, None])
    return new_a, mix_b_sparse(a, b, ranks, scales, weights)[1]


def mix_b_sparse(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: SharedRows
) -> tuple[Tensor, Tensor]:
    """`mix_b`: scale * B alone."""
    mixed = mix_linear(b * scales.to(b.dtype)[:, None, None], weights)
    return a, torch.where(_own(weights, b), b, own_b(mixed, ranks, scales))


def own_b(mixed: Tensor, ranks: Tensor, scales: Tensor) -> Tensor:
    """The B of each client [n, d_out, R] from its mixture of scale * B, cut to its rank."""
    scale, used = scales.to(mixed.dtype)[:, None, None], rank_mask(ranks, mixed.shape[2])
    return mixed / scale * used[:, None, :]


def mix_rotated_sparse(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: SharedRows
) -> tuple[Tensor, Tensor]:
    """`mix_rotated` with the clients of each row alone."""
    layer = Layer(a, b, ranks, scales)
    new_a, new_b = a.clone(), b.clone()
    moving = np.nonzero(~keeps_own_row(weights))[0]
    for row in np.unique(weights.which[moving]).tolist():
        clients = torch.from_numpy(moving[weights.which[moving] == row]).to(a.device)
        found = mix_turned(layer, *_entries(weights.rows, row, a.device), clients)
        new_a[clients], new_b[clients] = found.a, found.b
    return new_a, new_b


def _own(weights: SharedRows, like: Tensor) -> Tensor:
    return torch.from_numpy(keeps_own_row(weights)).to(like.device)[:, None, None]


def _entries(rows: Edges, row: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Who is in a mixture, and what each counts in it."""
    some = slice(rows.indptr[row], rows.indptr[row + 1])
    mixed = torch.from_numpy(rows.indices[some].astype(np.int64))
    return mixed.to(device), torch.from_numpy(rows.data[some]).to(device)


SparseMixer = Callable[[Tensor, Tensor, Tensor, Tensor, SharedRows], tuple[Tensor, Tensor]]

SPARSE_MIXERS: dict[str, SparseMixer] = {
    "product": mix_sparse,
    "svd": mix_svd_sparse,
    "factors": mix_factors_sparse,
    "b": mix_b_sparse,
}
"""By space, as `MIXERS`."""

SPARSE_ROTATED: dict[str, SparseMixer] = {"factors": mix_rotated_sparse}
"""By space, as `ROTATED`."""


def stack_sparse(
    a: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, weights: SharedRows
) -> tuple[Tensor, Tensor, Tensor]:
    """`stack_factors`, each distinct row stacked once.

    Where all clients have one row they share its memory: what comes back is to be read, not
    written into. Arguments and results otherwise as in `stack_factors`.
    """
    rows, which = weights.rows, torch.from_numpy(weights.which).to(a.device)
    heard = rows.astype(bool).astype(np.int64)
    sizes = torch.from_numpy(heard @ ranks.cpu().numpy()).to(a.device)
    # alpha / rank times rank is alpha, the same for whoever has the row.
    first = torch.from_numpy(np.unique(weights.which, return_index=True)[1]).to(a.device)
    own = torch.from_numpy(keeps_own_row(weights)).to(a.device)[first]
    new_scales = torch.where(own, scales[first], scales[first] * ranks[first] / sizes)
    new_a = a.new_zeros(rows.shape[0], int(sizes.max()), a.shape[2])
    new_b = b.new_zeros(rows.shape[0], b.shape[1], int(sizes.max()))
    for row, size in enumerate(sizes.tolist()):
        mixed, shares = _entries(rows, row, a.device)
        slots = used_slots(a[mixed], b[mixed], ranks[mixed])
        strength = (shares * scales[mixed] / new_scales[row])[slots.owner]
        new_a[row, :size] = slots.rows.to(a.dtype)
        new_b[row, :, :size] = (slots.columns * strength[:, None]).T.to(b.dtype)
    if rows.shape[0] == 1:
        everybody = (len(which), -1, -1)
        return new_a.expand(everybody), new_b.expand(everybody), sizes[which]
    return new_a[which], new_b[which], sizes[which]
