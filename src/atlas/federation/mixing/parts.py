"""Many clients a part at a time, so that what is in memory does not grow with their number.

Few clients are one part. Of many, a part is as many as have adapters of `PART_BYTES` together:
whether the server keeps adapters in memory or on disk, the parts are the same, and so the bits.
A mixture over more clients than a part is added up once, and every part receives it from the sum
(`mixing/sums.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas.federation.adapters.adapter import factor_names, heads_of
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.mixing.apply import Weights, mix_cohort, routed
from atlas.federation.mixing.cutting import Cutting, as_rows
from atlas.federation.mixing.sums import SummedRows, sum_rows
from atlas.federation.routing.masks import Routes
from atlas.ops.graph import sparse_rows as sparse
from atlas.ops.graph.sparse_rows import LARGEST_DENSE, Places, SharedRows
from atlas.ops.lowrank.factors import Layer
from atlas.ops.lowrank.leading import Exact
from atlas.ops.lowrank.mixing_sparse import exact_mixtures
from atlas.ops.lowrank.mixing_sums import SUMS, SummedProducts
from atlas.ops.lowrank.sources import layer_rows
from atlas.runs.cores import side_by_side

PART_BYTES = 1 << 24
"""What the adapters of the clients of one part take."""


def parts_of(cohorts: Mapping[str, Cohort], clients: Sequence[str]) -> Iterator[list[str]]:
    """Some clients of some cohorts, in the order given, a part at a time."""
    everybody = sum(len(cohort.clients) for cohort in cohorts.values())
    size = max(1, len(clients))
    if everybody > LARGEST_DENSE:
        size = min(part_size(cohort) for cohort in cohorts.values())
    for start in range(0, len(clients), size):
        yield list(clients[start : start + size])


def part_size(cohort: Cohort) -> int:
    """How many clients of a large cohort are a part."""
    return max(1, PART_BYTES // client_bytes(cohort))


def client_bytes(cohort: Cohort) -> int:
    """What one client's padded adapter takes."""
    return sum(value[0].nbytes for value in cohort.tensors.values())


def together(cohort: Cohort, weights: Sequence[Weights], clients: Sequence[str]) -> list[str]:
    """Some clients in an order in which a part needs few others; as they are where W is a matrix.

    Args:
        cohort: Whose clients they are.
        weights: Each W that is offered; they have the same neighbours, so the first decides.
        clients: Who receives.
    """
    first, size = weights[0], part_size(cohort)
    if not isinstance(first, SharedRows) or len(clients) <= size:
        return list(clients)
    order = sparse.by_acquaintance(first, cohort.index(clients).numpy(), size)
    return [cohort.clients[k] for k in order.tolist()]


@dataclass
class PartMixer:
    """One W applied to a cohort, for a part of the clients at a time.

    Attributes:
        cohort: The adapters as trained.
        weights: W of the whole cohort.
        space: See `mix_cohort`.
        heads: See `mix_cohort`.
        align: See `mix_cohort`.
        routes: See `mix_cohort`; of the whole cohort.
        cutting: See `mix_cohort`; of the whole cohort.
    """

    cohort: Cohort
    weights: Weights
    space: str
    heads: str
    align: str = "none"
    routes: Routes | None = None
    cutting: Cutting | None = None
    _kept: tuple[SummedRows, SharedRows] | None = field(default=None, init=False)

    def mix(self, some: Sequence[str]) -> Cohort:
        """The mixtures of some clients, in that order, from nothing but the adapters in them."""
        weights = self.weights
        if not isinstance(weights, SharedRows):
            return self._whole(weights, some)
        receivers = self.cohort.index(some).numpy()
        large = self._large(weights, receivers)
        if not len(large):
            return self._whole(weights, some)
        summed, rest = self._sums(weights, large)
        return receive_sums(self._whole(rest, some), summed, receivers)

    def _whole(self, weights: Weights, some: Sequence[str]) -> Cohort:
        """Mixtures whose clients are all in memory."""
        how: Any = {"space": self.space, "heads": self.heads, "align": self.align}
        how |= {"routes": self.routes, "cutting": self.cutting}
        return mix_part(self.cohort, weights, some, **how)

    def exact(self, module: int, receivers: Places, whole: bool = False) -> tuple[Exact, Tensor]:
        """The mixtures of some clients before they are cut, and which each receives [c].

        Where residuals are kept, all of a mixture that a client or its residual could hold; if
        `whole`, all of it.
        """
        assert self.cutting is not None
        weights = self.weights
        if isinstance(weights, Tensor) and weights.dim() == 3:
            weights = weights[module]
        rows = as_rows(routed(weights, self.routes, module))
        wanted, which = np.unique(rows.which[receivers], return_inverse=True)
        count = None if whole else self.cutting.directions(self.cohort, module)
        large = self._large(rows, receivers) if isinstance(self.weights, SharedRows) else wanted[:0]
        few = wanted[~np.isin(wanted, large)]
        edges = rows.rows[few]
        needed = np.unique(edges.indices).astype(np.int64)
        some = torch.from_numpy(needed)
        layer = layer_rows(self.cohort.layer(module), some)
        recipe = self.cutting.recipe(self.cohort, module).select(some)
        edges = sparse.tidy(edges[:, needed])
        solved = exact_mixtures(layer, edges, np.arange(len(few)), recipe, count)
        if len(large):
            summed, _ = self._sums(rows, large)
            made = summed.modules[module]
            assert isinstance(made, SummedProducts)
            place = torch.from_numpy(np.searchsorted(summed.rows, large)).to(solved.energy.device)
            solved = solved.and_then(made.uncut(place) if whole else made.exact.select(place))
        order = np.argsort(np.concatenate([few, large]), kind="stable")
        place = torch.from_numpy(order[which.reshape(-1)])
        return solved, place.to(solved.energy.device)

    def _sums(self, weights: SharedRows, large: Places) -> tuple[SummedRows, SharedRows]:
        """Large rows summed, and W in which whoever receives one keeps its own.

        Parts mostly share their large rows; those of the last part are enough to keep.
        """
        if self._kept is None or not np.isin(large, self._kept[0].rows).all():
            most = part_size(self.cohort)
            how: Any = {"space": self.space, "heads": self.heads, "cutting": self.cutting}
            summed = sum_rows(self.cohort, weights, large, most, **how)
            self._kept = summed, sparse.keep_own(weights, summed.place >= 0)
        return self._kept

    def _large(self, weights: SharedRows, receivers: Places) -> Places:
        """The rows over more clients than a part that somebody here receives."""
        plain = self.routes is None and self.align == "none" and not self.cohort.layout.cores
        if not plain or self.space not in SUMS:
            return np.empty(0, dtype=np.int64)
        rows = np.unique(weights.which[receivers])
        counts = np.diff(weights.rows.indptr)[rows]
        found: Places = rows[counts > part_size(self.cohort)]
        return found


def receive_sums(part: Cohort, summed: SummedRows, receivers: Places) -> Cohort:
    """A part in which those who receive a summed mixture have it.

    Args:
        part: Who receives one still has its own adapter here.
        summed: The mixtures.
        receivers: Where the part's clients are in the whole cohort.
    """
    tensors = dict(part.tensors)
    rows, which = summed.receive(receivers)

    def take(i: int) -> tuple[Tensor, Tensor]:
        held = Layer(*(value[rows.to(value.device)] for value in part.layer(i)))
        return summed.modules[i].take(which.to(held.a.device), held)

    modules = part.layout.modules
    taken = side_by_side([partial(take, i) for i in range(len(modules))])
    for module, made in zip(modules, taken, strict=True):
        for name, value in zip(factor_names(module), made, strict=True):
            tensors[name] = tensors[name].index_copy(0, rows.to(value.device), value)
    places, mixtures = summed.receive_heads(receivers)
    for name in heads_of(summed.heads):
        value = summed.heads[name][mixtures].to(tensors[name])
        tensors[name] = tensors[name].index_copy(0, places.to(value.device), value)
    return replace(part, tensors=tensors)


def mix_part(  # noqa: PLR0913
    cohort: Cohort,
    weights: Weights,
    some: Sequence[str],
    *,
    space: str,
    heads: str,
    align: str = "none",
    routes: Routes | None = None,
    cutting: Cutting | None = None,
) -> Cohort:
    """The mixtures of some clients, in that order; everybody in them is in memory.

    Where all clients are asked for, or W is a matrix, the whole cohort is mixed.

    Args:
        cohort: The adapters as trained.
        weights: W of the whole cohort.
        some: Who receives.
        space: See `mix_cohort`.
        heads: See `mix_cohort`.
        align: See `mix_cohort`.
        routes: See `mix_cohort`; of the whole cohort.
        cutting: See `mix_cohort`; of the whole cohort.
    """
    how = {"space": space, "heads": heads, "align": align}
    if not isinstance(weights, SharedRows) or len(some) == len(cohort.clients):
        mixed = mix_cohort(cohort, weights, **how, routes=routes, cutting=cutting)
        return mixed if len(some) == len(cohort.clients) else mixed.select(some)
    receivers = cohort.index(some).numpy()
    chosen, which = np.unique(weights.which[receivers], return_inverse=True)
    rows = weights.rows[chosen]
    needed = np.union1d(receivers, rows.indices)
    column = np.searchsorted(needed, receivers)
    whose = np.zeros(len(needed), dtype=np.int64)
    whose[column] = which
    beside = np.ones(len(needed), dtype=np.bool_)
    beside[column] = False
    # Those who are mixed but do not receive need a row too: their own, which costs nothing.
    own = sparse.keep_own(SharedRows(sparse.tidy(rows[:, needed]), whose), beside)
    part = cohort.select([cohort.clients[k] for k in needed.tolist()])
    masks = routes and routes.select(torch.from_numpy(needed))
    cuts = cutting and cutting.select(part.clients)
    return mix_cohort(part, own, **how, routes=masks, cutting=cuts).select(some)
