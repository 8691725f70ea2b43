"""In which unit distances between clients are counted, and how many neighbours one has."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from atlas.federation.strategies.base import View
from atlas.ops.clustering.clusters import Floats
from atlas.ops.graph.neighbours import nearest_gap
from atlas.ops.graph.sparse_rows import Places

START_ALPHA = 1.0
LEAST_UNIT = 0.15
"""Of squared distances, which are 4 at most: where many clients have a twin, others keep edges."""

IN_CLUSTERS = 8
"""Neighbours in a cluster. Who is nearest among clients of one task is mostly chance, so the cut
is there to keep W sparse."""
AMONG_ALL = 3
"""Neighbours where there are no clusters: the cut is what keeps strangers out."""


@dataclass(frozen=True)
class Alphas:
    """What squared distances are multiplied by, for every pair of clients.

    Attributes:
        table: Between members of any two clusters [k, k]; without clusters all are in one.
        place: Row and column of each client's cluster [n].
    """

    table: Tensor
    place: Tensor

    def between(self, one: Tensor, two: Tensor) -> Tensor:
        """For pairs of positions, of any shapes that broadcast."""
        return self.table[self.place[one], self.place[two]]


def alphas_of(view: View, features: Tensor) -> Alphas:
    """Alpha, in units of the scale. Where clients choose alpha, it is one to begin with."""
    alpha, settings = view.settings.alpha, view.settings
    own = START_ALPHA if isinstance(alpha, str) else alpha
    names, place = np.unique(view.clusters or [0] * len(features), return_inverse=True)
    units = np.ones((len(names), len(names)))
    if settings.affinity == "rbf" and settings.scale != "unit":
        units *= distance_unit(view, features)
        if settings.scale == "cluster" and view.clusters is not None:
            _widen(units, cluster_gaps(features, place), _places(kin_of(view), names))
    return Alphas(
        torch.from_numpy(own / units).to(features), torch.from_numpy(place).to(features.device)
    )


def _widen(units: Floats, gaps: Floats, kin: Sequence[tuple[int, int]]) -> None:
    """Clusters whose members lie farther apart than is usual count in units of their own.

    No unit becomes smaller, and none between two clusters larger than inside either: a nearer
    client of one's own cluster is then always more alike, which the search for neighbours needs.

    Args:
        units: Between any two clusters, equal so far [k, k]; changed in place.
        gaps: How far apart members of each cluster are [k].
        kin: Clusters that were one; they count in the smaller unit of both.
    """
    inside = np.maximum(units.diagonal(), gaps)
    np.fill_diagonal(units, inside)
    for one, two in kin:
        units[one, two] = units[two, one] = min(inside[one], inside[two])


def kin_of(view: View) -> Mapping[tuple[int, int], float]:
    """Factors on edges between clusters that were one, unless the settings keep these apart."""
    return view.kin if view.settings.siblings == "affinity" else {}


def _places(kin: Mapping[tuple[int, int], float], names: Places) -> list[tuple[int, int]]:
    """Pairs of clusters that are both there, by their places."""
    place = {int(name): number for number, name in enumerate(names)}
    return [(place[a], place[b]) for (a, b), factor in kin.items() if factor and {a, b} <= {*place}]


def distance_unit(view: View, features: Tensor) -> float:
    """The squared distance that alpha counts in: the median to the nearest other, over ln m.

    m is how many there are to choose from. A client at twice the squared distance of the nearest
    then counts 1 / m of it: all strangers together count about as much as one that is alike,
    however many tasks there are.
    """
    among = len(view.clients)
    if view.clusters is not None and view.settings.cross == 0:
        among = max(Counter(view.clusters).values())
    return max(LEAST_UNIT, nearest_gap(features) / max(1.0, math.log(among)))


def cluster_gaps(features: Tensor, place: Places) -> Floats:
    """The median to the nearest other in each cluster; 0 where there is none [k].

    Not over ln m: inside a cluster there are no strangers whose weight must stay small.
    """
    order = np.argsort(place, kind="stable")
    found = []
    for members in np.split(order, np.nonzero(np.diff(place[order]))[0] + 1):
        own = features[torch.from_numpy(members).to(features.device)]
        known = int((own.square().sum(1) > 0).sum())
        found.append(nearest_gap(own) if known > 1 else 0.0)
    return np.asarray(found)


def neighbours_wanted(view: View) -> int | None:
    """How many neighbours a client keeps at most; None: all."""
    wanted = view.settings.nearest
    if wanted != "auto":
        return wanted
    return AMONG_ALL if view.clusters is None else IN_CLUSTERS
