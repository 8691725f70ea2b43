"""Rows of W over more clients than are in memory, summed over the cohort a part at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from atlas.federation.adapters.adapter import heads_of
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.mixing.cutting import Cutting
from atlas.ops.clustering.clusters import canonical
from atlas.ops.graph import sparse_rows as sparse
from atlas.ops.graph.sparse_rows import Edges, Places, SharedRows
from atlas.ops.lowrank.factors import Layer
from atlas.ops.lowrank.mixing_sums import SUMS, Summed, linear_sum, sum_products
from atlas.ops.lowrank.sources import Recipe, ingredients, layer_rows, portions
from atlas.runs.cores import side_by_side


@dataclass(frozen=True)
class SummedRows:
    """Mixtures of many clients, ready to be received.

    Attributes:
        rows: Which rows of W they are.
        place: Which of them each client of the cohort receives, -1 for none of them [n].
        modules: The mixtures of each module.
        head_place: As `place`, for heads, which are mixed within label sets.
        heads: Mixtures of each tensor of a head, float64; empty where heads are not mixed.
    """

    rows: Places
    place: Places
    modules: list[Summed]
    head_place: Places
    heads: Mapping[str, Tensor] = field(default_factory=dict)

    def receive(self, clients: Places) -> tuple[Tensor, Tensor]:
        """Who of some clients receives one: their places among those given, and which it is."""
        return _present(self.place[clients])

    def receive_heads(self, clients: Places) -> tuple[Tensor, Tensor]:
        """The same for heads."""
        return _present(self.head_place[clients])


def _present(place: Places) -> tuple[Tensor, Tensor]:
    rows = np.nonzero(place >= 0)[0]
    return torch.from_numpy(rows), torch.from_numpy(place[rows])


def sum_rows(  # noqa: PLR0913
    cohort: Cohort,
    weights: SharedRows,
    rows: Places,
    most: int,
    *,
    space: str,
    heads: str,
    cutting: Cutting | None = None,
) -> SummedRows:
    """Add up some rows of W.

    Args:
        cohort: The adapters as trained.
        weights: W of the whole cohort.
        rows: Which of its rows.
        most: Clients in memory at a time.
        space: A name in `SUMS`.
        heads: See `mix_cohort`.
        cutting: See `mix_cohort`.
    """
    number = np.full(weights.rows.shape[0], -1)
    number[rows] = np.arange(len(rows))
    place: Places = number[weights.which]
    mixtures = weights.rows[rows]

    def sum_module(i: int) -> Summed:
        parts = partial(_layers, cohort, i, mixtures, most)
        if cutting is None:
            return SUMS[space](parts(Recipe()), int(cohort.ranks(i).max()))
        again = partial(parts, cutting.recipe(cohort, i))
        made = sum_products(again(), cutting.directions(cohort, i), cutting.rule)
        return replace(made, again=again)

    modules = side_by_side([partial(sum_module, i) for i in range(len(cohort.layout.modules))])
    if heads != "mix":
        return SummedRows(rows, place, modules, np.full_like(place, -1))
    sets = np.array(canonical([member.label_set for member in cohort.members]))
    within = sparse.restrict_groups(sparse.keep_own(weights, place < 0), sets)
    moving = ~sparse.keeps_own_row(within)
    chosen, which = np.unique(within.which[moving], return_inverse=True)
    head_place = np.full_like(place, -1)
    head_place[moving] = which
    return SummedRows(
        rows, place, modules, head_place, _head_sums(cohort, within.rows[chosen], most)
    )


def _cut(rows: Edges, most: int) -> Iterator[tuple[Tensor, Edges]]:
    """Who is in any of some mixtures, at most so many at a time, with what they count [k, c]."""
    needed = np.unique(rows.indices).astype(np.int64)
    for start in range(0, len(needed), most):
        some = needed[start : start + most]
        yield torch.from_numpy(some), sparse.tidy(rows[:, some])


def _layers(
    cohort: Cohort, module: int, rows: Edges, most: int, recipe: Recipe
) -> Iterator[tuple[Layer, Edges]]:
    layer = cohort.layer(module)
    counts = portions(rows, layer.ranks.cpu().numpy(), recipe)
    for some, _ in _cut(rows, most):
        sources = ingredients(layer_rows(layer, some), recipe.select(some))
        for source, edges in zip(sources, counts, strict=True):
            yield source, sparse.tidy(edges[:, some.numpy()])
        cohort.release()


def _head_sums(cohort: Cohort, rows: Edges, most: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for some, counts in _cut(rows, most):
        for name, value in heads_of(cohort.tensors).items():
            part = linear_sum(value[some.to(value.device)], counts)
            found[name] = found[name] + part if name in found else part
        cohort.release()
    return found
