"""The nearest of many points, in about n log n.

Points are split again and again at the median along a line through two of them, until leaves are
small; inside a leaf the search is exact. A neighbour may lie across a split, so several such trees
are grown, and at last everybody asks its neighbours for theirs. Up to the size of a leaf there is
nothing to split, and the answer is exact.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LEAF = 1024
"""Points among which the search is exact."""

TREES = 4

ASKED = 512
"""Points that ask their neighbours at a time."""


class Found:
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
    found = Found(points, max(count, 0))
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


def _search(found: Found, members: Tensor) -> None:
    """Offer every member its nearest fellow members."""
    members = members.sort().values
    gap = squared_gaps(found.points[members], found.points[members])
    gap.fill_diagonal_(torch.inf)
    count = min(found.gap.shape[1], len(members) - 1)
    near, place = gap.topk(count, dim=1, largest=False)
    found.offer(members, members[place], near)


def _ask_around(found: Found) -> None:
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
