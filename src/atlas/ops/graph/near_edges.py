"""The graph of many clients: affinities of near pairs alone, as sparse edges.

The chain is that of `affinity` (alike, within groups, the nearest, symmetric), but pairs that are
far apart are never looked at. Where `ops.graph.neighbours` searches exactly, so is the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy
import torch
from torch import Tensor

from atlas.ops.graph.affinity import unit_rows
from atlas.ops.graph.neighbours import nearest_points, squared_gaps
from atlas.ops.graph.sparse_rows import Edges, Places, tidy

SPARE = 4
"""Candidates beyond the number wanted: the search rounds otherwise than the affinity does."""

CHUNK = 1 << 16
"""Pairs compared at a time."""

Pairs = tuple[Tensor, Tensor]
"""Two positions of equal shape: from whom, to whom."""


def pair_rbf(alpha: float, one: Tensor, two: Tensor) -> Tensor:
    """exp(-alpha * squared distance) of unit rows [p, d] and [p, d]: [p]."""
    return torch.exp(-alpha * (one - two).square().sum(-1))


def pair_cosine(alpha: float, one: Tensor, two: Tensor) -> Tensor:
    """Cosine of unit rows, opposite directions counting as nothing in common; alpha is not."""
    del alpha
    return (one * two).sum(-1).clamp(0.0, 1.0)


PAIRS: Mapping[str, Callable[[float, Tensor, Tensor], Tensor]] = {
    "rbf": pair_rbf,
    "cosine": pair_cosine,
}
"""Affinities that fall with distance, so that the nearest are the most alike."""


def near_edges(
    features: Tensor,
    labels: Sequence[int] | None,
    count: int,
    cross: float,
    alike: Callable[[Tensor, Tensor], Tensor],
) -> Edges:
    """Every client's `count` strongest edges, before they are made symmetric.

    Args:
        features: [n, d]; a zero row is a client of which nothing is known: it has no edges.
        labels: Group of each client; None: all are in one.
        count: Edges kept of each client; of equals, the earlier client's.
        cross: Factor on edges between groups.
        alike: Affinity of unit rows, pair by pair.

    Returns:
        Sparse [n, n], zero diagonal.
    """
    unit = unit_rows(features)
    groups = None if labels is None else np.asarray(labels)
    one, two = _candidates(unit, groups, count + SPARE, across=cross > 0)
    # A split of nothing is one part of nothing.
    parts = zip(torch.split(one, CHUNK), torch.split(two, CHUNK), strict=True)
    value = torch.cat([alike(unit[i], unit[j]) for i, j in parts])
    i, j, strength = one.cpu().numpy(), two.cpu().numpy(), value.cpu().numpy()
    if groups is not None:
        strength = np.where(groups[i] == groups[j], strength, strength * cross)
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
    strength = alike(unit[lonely], unit[other]).cpu().numpy()
    one, two = lonely.cpu().numpy(), other.cpu().numpy()
    added = tidy(scipy.sparse.coo_array((strength, (one, two)), shape=edges.shape).tocsr())
    return tidy(edges.maximum(added.maximum(added.T)))


def _candidates(unit: Tensor, groups: Places | None, count: int, *, across: bool) -> Pairs:
    """Pairs that may be among the nearest, each once: within groups, and across if wanted."""
    known = torch.nonzero(unit.square().sum(1) > 0).flatten()
    parts = [known] if groups is None or across else []
    if groups is not None:
        own = groups[known.cpu().numpy()]
        order = np.argsort(own, kind="stable")
        cuts = np.nonzero(np.diff(own[order]))[0] + 1
        parts += [known[torch.from_numpy(part).to(known.device)] for part in np.split(order, cuts)]
    found = []
    for members in parts:
        near = nearest_points(unit[members], count)
        i = torch.arange(len(members), device=near.device).repeat_interleave(near.shape[1])
        there = near.flatten() >= 0
        found.append(torch.stack([members[i[there]], members[near.flatten()[there]]]))
    one, two = torch.cat([known.new_zeros(2, 0), *found], dim=1)
    key = torch.unique(one * len(unit) + two)
    return key // len(unit), key % len(unit)
