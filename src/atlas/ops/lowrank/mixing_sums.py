"""Mixtures of more clients than are in memory: added up a part of them at a time, then received.

A mixture of all clients of a federation is one sum, whoever receives it: of the changes themselves
in product space, of the factors in the spaces that mix those. Summed, it has the size of a module
however many clients are in it. `SUMS` has the spaces of `SPARSE_MIXERS` in which that holds; in
`svd` and `stack` what is received grows with the number of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from atlas.ops.graph.sparse_rows import Edges
from atlas.ops.lowrank.factors import Layer, rank_mask, used_slots
from atlas.ops.lowrank.leading import Exact, leading_of_dense
from atlas.ops.lowrank.mixing_sparse import linear_rows, own_b
from atlas.ops.lowrank.sources import CutRule, cut_mixtures

LayerParts = Iterable[tuple[Layer, Edges]]
"""Some clients' factors of a module, and what they count in each of k mixtures [k, c]."""


class Summed(Protocol):
    """Mixtures of a module that are summed and can be received."""

    def take(self, which: Tensor, held: Layer) -> tuple[Tensor, Tensor]:
        """New A and B of some clients, in the dtype held.

        Args:
            which: The mixture each of c clients receives [c].
            held: Those clients' own factors, ranks and scales.
        """
        ...


@dataclass(frozen=True)
class SummedProducts:
    """The leading part of mixtures in product space, and how it is cut.

    Attributes:
        exact: As much of each as its cut needs.
        cut: Which rule.
        again: Gives once more what the mixtures are made of, where all of one may be needed. Few
            ask for it, and a mixture itself, kept for every module, would take as much as a model.
    """

    exact: Exact
    cut: CutRule = "leading"
    again: Callable[[], LayerParts] | None = None

    def uncut(self, some: Tensor) -> Exact:
        """Some of them with all directions they can have."""
        assert self.again is not None
        mixtures = _total(self.again())[some]
        leading = leading_of_dense(mixtures, min(mixtures.shape[1:]))
        return Exact(leading, self.exact.energy[some])

    def take(self, which: Tensor, held: Layer) -> tuple[Tensor, Tensor]:
        """Cut to each client's rank in its own gauge; see `Summed`."""
        return cut_mixtures(self.exact.leading, which, held, self.cut)


@dataclass(frozen=True)
class SummedFactors:
    """Mixtures of A and of scale * B [k, ...], float64; None where A is not mixed."""

    a: Tensor | None
    b: Tensor

    def take(self, which: Tensor, held: Layer) -> tuple[Tensor, Tensor]:
        """Slots beyond a client's own rank are cut; see `Summed`."""
        new_b = own_b(self.b[which].to(held.b.dtype), held.ranks, held.scales)
        if self.a is None:
            return held.a, new_b
        used = rank_mask(held.ranks, held.a.shape[1])
        return self.a[which].to(held.a.dtype) * used[:, :, None], new_b


def sum_products(parts: LayerParts, largest: int, cut: CutRule = "leading") -> SummedProducts:
    """Mixtures of scaled products."""
    total = _total(parts)
    energy = total.square().sum((1, 2))
    return SummedProducts(Exact(leading_of_dense(total, largest), energy), cut)


def _total(parts: LayerParts) -> Tensor:
    return reduce(torch.add, (products_of(layer, rows) for layer, rows in parts))


def products_of(layer: Layer, rows: Edges) -> Tensor:
    """What some clients add to mixtures `rows` [k, c]: [k, d_out, d_in], float64."""
    found = layer.a.new_zeros(
        rows.shape[0], layer.b.shape[1], layer.a.shape[2], dtype=torch.float64
    )
    for k in range(rows.shape[0]):
        own = slice(rows.indptr[k], rows.indptr[k + 1])
        mixed = torch.from_numpy(rows.indices[own].astype(np.int64)).to(layer.a.device)
        a, b, ranks, scales = (value[mixed] for value in layer)
        slots = used_slots(a, b, ranks)
        strength = torch.from_numpy(rows.data[own]).to(scales) * scales
        found[k] = (slots.columns * strength[slots.owner][:, None]).T @ slots.rows
    return found


def sum_factors(parts: LayerParts, largest: int) -> SummedFactors:
    """Mixtures of A and scale * B apart."""
    del largest
    pairs = ((linear_sum(one.a, rows), _scaled_b(one, rows)) for one, rows in parts)
    a, b = reduce(lambda one, two: (one[0] + two[0], one[1] + two[1]), pairs)
    return SummedFactors(a, b)


def sum_b(parts: LayerParts, largest: int) -> SummedFactors:
    """Mixtures of scale * B alone."""
    del largest
    return SummedFactors(None, reduce(torch.add, (_scaled_b(one, rows) for one, rows in parts)))


def _scaled_b(layer: Layer, rows: Edges) -> Tensor:
    return linear_sum(layer.b * layer.scales.to(layer.b.dtype)[:, None, None], rows)


def linear_sum(values: Tensor, rows: Edges) -> Tensor:
    """What stacked values [c, ...] add to mixtures `rows` [k, c]: [k, ...], float64."""
    return linear_rows(values.flatten(1), rows).reshape(rows.shape[0], *values.shape[1:])


SUMS: dict[str, Callable[[LayerParts, int], Summed]] = {
    "product": sum_products,
    "factors": sum_factors,
    "b": sum_b,
}
"""By space; each is told the parts and the largest rank that is received."""
