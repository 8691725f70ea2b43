"""The nearest of many points in about n log n, and the sparse graph of clients made of them.

Points are split again and again at the median along a line through two of them, until leaves are
small; inside a leaf the search is exact. A neighbour may lie across a split, so several such trees
are grown, and at last everybody asks its neighbours for theirs. Up to the size of a leaf there is
nothing to split, and the answer is exact.

The graph's chain is that of `affinity` (alike, within groups, the nearest, symmetric), but pairs
that are far apart are never looked at; where the search is exact, so is the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy
import torch
from torch import Tensor

from atlas.ops.clustering.clusters import Floats
from atlas.ops.graph.affinity import unit_rows
from atlas.ops.graph.sparse_rows import Edges, Places, tidy
from atlas.ops.sketch import FLAT

LEAF = 1024
"""Points among which the search is exact."""

TREES = 4

ASKED = 512
"""Points that ask their neighbours at a time."""


class Candidates:
    """The best candidates so far of every point: `index` and squared `gap` [n, count]."""

    def __init__(self, points: Tensor, count: int) -> None:
        self.points = points
        shape = (len(points), count)
        self.index = torch.full(shape, -1, dtype=torch.long, device=points.device)
        self.gap = torch.full(shape, torch.inf, dtype=points.dtype, device=points.device)

    def offer(self, rows: Tensor, index: Tensor, gap: Tensor) -> None:
        """Let the points `rows` [k] choose among what they have and candidates [k, c].

        Of equal distances the earlier point is nearer. A candidate of -1 is none.
        """
        index = torch.cat([self.index[rows], index], dim=1)
        gap = torch.cat([self.gap[rows], gap], dim=1)
        index, order = index.sort(dim=1)
        gap = gap.gather(1, order)
        seen = torch.zeros_like(gap, dtype=torch.bool)
        seen[:, 1:] = index[:, 1:] == index[:, :-1]
        gap = gap.masked_fill(seen | (index < 0), torch.inf)
        gap, order = gap.sort(dim=1, stable=True)
        kept = self.gap.shape[1]
        self.gap[rows] = gap[:, :kept]
        self.index[rows] = index.gather(1, order)[:, :kept].masked_fill(gap[:, :kept].isinf(), -1)


def nearest_points(
    points: Tensor, count: int, seed: int = 0, *, leaf: int = LEAF, trees: int = TREES
) -> Tensor:
    """The `count` nearest others of every point, nearest first.

    Args:
        points: [n, d].
        count: How many are wanted.
        seed: Of the splits.
        leaf: Up to this many points the answer is exact.
        trees: How often all points are split anew.

    Returns:
        Positions [n, min(count, n - 1)].
    """
    points = points.to(torch.float64)
    n, count = len(points), min(count, len(points) - 1)
    found = Candidates(points, max(count, 0))
    if count < 1:
        return found.index
    if leaf <= count:
        raise ValueError(f"a leaf of {leaf} holds no {count} others")
    draw = np.random.default_rng(seed)
    for _ in range(trees if n > leaf else 1):
        for members in split(points, leaf, draw):
            _search(found, members)
    if n > leaf:
        _ask_around(found)
    return found.index


def split(points: Tensor, leaf: int, draw: np.random.Generator) -> list[Tensor]:
    """Halve the points until no part has more than `leaf`: positions of each part."""
    waiting, leaves = [torch.arange(len(points), device=points.device)], []
    while waiting:
        members = waiting.pop()
        if len(members) <= leaf:
            leaves.append(members)
            continue
        one, two = draw.choice(len(members), 2, replace=False).tolist()
        line = points[members[one]] - points[members[two]]
        # Along a line of no length all are alike, and the halves are those of the list.
        order = torch.argsort(points[members] @ line, stable=True)
        half = len(members) // 2
        waiting += [members[order[:half]], members[order[half:]]]
    return leaves


def _search(found: Candidates, members: Tensor) -> None:
    """Offer every member its nearest fellow members."""
    members = members.sort().values
    gap = squared_gaps(found.points[members], found.points[members])
    gap.fill_diagonal_(torch.inf)
    count = min(found.gap.shape[1], len(members) - 1)
    near, place = gap.topk(count, dim=1, largest=False)
    found.offer(members, members[place], near)


def _ask_around(found: Candidates) -> None:
    """Offer everybody the neighbours of its neighbours."""
    before = found.index.clone()
    for rows in torch.split(torch.arange(len(before), device=before.device), ASKED):
        theirs = before[before[rows].clamp_min(0)].flatten(1)
        theirs = torch.where(theirs == rows[:, None], -1, theirs)
        gaps = found.points[theirs.clamp_min(0)] - found.points[rows][:, None]
        found.offer(rows, theirs, gaps.square().sum(-1))


def squared_gaps(one: Tensor, two: Tensor) -> Tensor:
    """Squared distances [n, m] of rows [n, d] and [m, d], without a tensor of all differences."""
    lengths = one.square().sum(1)[:, None] + two.square().sum(1)
    return (lengths - 2 * one @ two.T).clamp_min(0.0)


SPARE = 4
"""Candidates beyond the number wanted: the search rounds otherwise than the affinity does."""

CHUNK = 1 << 16
"""Pairs compared at a time."""

Pairs = tuple[Tensor, Tensor]
"""Two positions of equal shape: from whom, to whom."""


def pair_rbf(alpha: Tensor, one: Tensor, two: Tensor) -> Tensor:
    """exp(-alpha * squared distance) of unit rows [p, d] and [p, d], an alpha for each: [p]."""
    return torch.exp(-alpha * (one - two).square().sum(-1))


def pair_cosine(alpha: Tensor, one: Tensor, two: Tensor) -> Tensor:
    """Cosine of unit rows, opposite directions counting as nothing in common; alpha is not."""
    del alpha
    return (one * two).sum(-1).clamp(0.0, 1.0)


def pair_tempered(temperature: float, one: Tensor, two: Tensor) -> Tensor:
    """exp((cosine - 1) / temperature) of unit rows [p, d] and [p, d]; see `affinity.tempered`."""
    return torch.exp(((one * two).sum(-1).clamp(-1.0, 1.0) - 1.0) / temperature)


PAIRS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "rbf": pair_rbf,
    "cosine": pair_cosine,
}
"""Affinities that fall with distance, so that the nearest are the most alike."""


def nearest_gap(features: Tensor) -> float:
    """The median over clients of the squared distance to the nearest other, of unit features.

    It is the size of a difference between clients that are alike, however many others there are:
    the median over all pairs would be that of strangers as soon as there are three tasks. Unknown
    clients, rows of zeros, do not count; 1 where nobody has another, or everybody an equal.
    """
    unit = unit_rows(features)
    known = unit[unit.square().sum(1) > 0]
    near = nearest_points(known, 1)
    if near.numel() == 0:
        return 1.0
    gaps = (known - known[near[:, 0]]).square().sum(1)
    median = float(gaps.median())
    return median if median > FLAT else 1.0


def near_edges(  # noqa: PLR0913
    features: Tensor,
    labels: Sequence[int] | None,
    count: int,
    cross: float,
    alike: Callable[[Tensor, Tensor], Tensor],
    kin: Mapping[tuple[int, int], float] | None = None,
) -> Edges:
    """Every client's `count` strongest edges, before they are made symmetric.

    Args:
        features: [n, d]; a zero row is a client of which nothing is known: it has no edges.
        labels: Group of each client; None: all are in one.
        count: Edges kept of each client; of equals, the earlier client's.
        cross: Factor on edges between groups.
        alike: Affinity of clients at two positions each [p]. The nearer of two in one group is the
            more alike, and nobody of another group is more so than a nearer one of one's own.
        kin: Larger factors on edges between some pairs of groups, either way round.

    Returns:
        Sparse [n, n], zero diagonal.
    """
    unit = unit_rows(features)
    groups = None if labels is None else np.asarray(labels)
    across = [] if groups is None else _families(groups, kin or {}, cross)
    one, two = _candidates(unit, groups, count + SPARE, across)
    # A split of nothing is one part of nothing.
    parts = zip(torch.split(one, CHUNK), torch.split(two, CHUNK), strict=True)
    value = torch.cat([alike(i, j) for i, j in parts])
    i, j, strength = one.cpu().numpy(), two.cpu().numpy(), value.cpu().numpy()
    if groups is not None:
        strength = strength * _factors(groups, kin or {}, cross)(groups[i], groups[j])
    order = np.lexsort((j, -strength, i))
    i, j, strength = i[order], j[order], strength[order]
    first = np.searchsorted(i, i)
    kept = np.arange(len(i)) - first < count
    n = len(unit)
    return tidy(scipy.sparse.coo_array((strength[kept], (i[kept], j[kept])), shape=(n, n)).tocsr())


def connect_lonely(
    edges: Edges, features: Tensor, alike: Callable[[Tensor, Tensor], Tensor]
) -> Edges:
    """Give a client without edges its strongest of all, in both directions; see `affinity`."""
    unit = unit_rows(features)
    known = torch.nonzero(unit.square().sum(1) > 0).flatten()
    lonely = known[torch.from_numpy(np.diff(edges.indptr) == 0).to(known.device)[known]]
    if len(lonely) == 0 or len(known) < 2:
        return edges
    others = []
    for some in torch.split(lonely, max(1, CHUNK // len(known))):
        gaps = squared_gaps(unit[some], unit[known])
        gaps[some[:, None] == known] = torch.inf
        others.append(known[gaps.argmin(1)])
    other = torch.cat(others)
    strength = alike(lonely, other).cpu().numpy()
    one, two = lonely.cpu().numpy(), other.cpu().numpy()
    added = tidy(scipy.sparse.coo_array((strength, (one, two)), shape=edges.shape).tocsr())
    return tidy(edges.maximum(added.maximum(added.T)))


def closest_factors(
    edges: Edges, labels: Sequence[int], cross: float, kin: Mapping[tuple[int, int], float]
) -> Floats:
    """The largest factor on any edge of each client [n]; see `affinity.closest_factors`."""
    groups, pairs = np.asarray(labels), edges.tocoo()
    factors = _factors(groups, kin, cross)(groups[pairs.row], groups[pairs.col])
    largest = np.zeros(len(groups))
    np.maximum.at(largest, pairs.row, np.where(factors > 0, factors, 1.0))
    return np.where(largest > 0, largest, 1.0)


def _factors(
    groups: Places, kin: Mapping[tuple[int, int], float], cross: float
) -> Callable[[Places, Places], Floats]:
    """What edges between two groups count, for arrays of both."""
    names = np.unique(groups)
    table = np.full((len(names), len(names)), cross)
    np.fill_diagonal(table, 1.0)
    place = {int(name): number for number, name in enumerate(names)}
    for (a, b), factor in kin.items():
        if a in place and b in place:
            one, two = place[a], place[b]
            table[one, two] = table[two, one] = max(cross, factor)

    def look_up(one: Places, two: Places) -> Floats:
        found: Floats = table[np.searchsorted(names, one), np.searchsorted(names, two)]
        return found

    return look_up


def _families(
    groups: Places, kin: Mapping[tuple[int, int], float], cross: float
) -> list[frozenset[int]]:
    """Sets of groups that have edges between them: every two that are kin, and all."""
    found = [frozenset(pair) for pair, factor in kin.items() if factor > 0]
    # Kin are looked for by themselves: of all others, strangers who count less may be nearer.
    return [*found, frozenset(np.unique(groups).tolist())] if cross > 0 else found


def _candidates(
    unit: Tensor, groups: Places | None, count: int, across: Sequence[frozenset[int]]
) -> Pairs:
    """Pairs that may be among the nearest, each once: within groups, and across some of them."""
    known = torch.nonzero(unit.square().sum(1) > 0).flatten()
    parts = [known] if groups is None else []
    if groups is not None:
        own = groups[known.cpu().numpy()]
        order = np.argsort(own, kind="stable")
        cuts = np.nonzero(np.diff(own[order]))[0] + 1
        chosen = [*np.split(order, cuts)]
        chosen += [np.nonzero(np.isin(own, list(family)))[0] for family in across]
        parts += [known[torch.from_numpy(part).to(known.device)] for part in chosen]
    found = []
    for members in parts:
        near = nearest_points(unit[members], count)
        i = torch.arange(len(members), device=near.device).repeat_interleave(near.shape[1])
        there = near.flatten() >= 0
        found.append(torch.stack([members[i[there]], members[near.flatten()[there]]]))
    one, two = torch.cat([known.new_zeros(2, 0), *found], dim=1)
    key = torch.unique(one * len(unit) + two)
    return key // len(unit), key % len(unit)
