"""Clusters that were split again form a tree, and parts of one cluster stay related.

A client's path says where it went at each look: `(1, 0)` is part 0 of the first look's cluster 1.
Parts of one cluster, unlike clusters of different tasks, still have much in common; how much is the
cosine of their mean gradients, measured from what the whole federation shares and in units of what
tells the cluster's own members apart. Parts with opposite labels have nothing in common then, and
genres of one task nearly everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from atlas.federation.fingerprints.compare import Centre, Prints
from atlas.ops.clustering.gain import part_affinities

Path = tuple[int, ...]
Kin = Mapping[tuple[int, int], float]
"""What edges between two clusters that were one count, by the numbers of both, smaller first."""


def find_kin(
    examine: Callable[[Sequence[int]], Prints], paths: Sequence[Path], centre: Centre
) -> dict[tuple[Path, Path], float]:
    """How far clusters that were one still want the same, by their paths.

    Two clusters are compared as the parts in which they were first parted; those parted by the
    first look have no kin.

    Args:
        examine: Gives the fingerprints of some clients, by position.
        paths: Of all clients.
        centre: What the whole federation shares.
    """
    found: dict[tuple[Path, Path], float] = {}
    leaves = sorted(set(paths))
    inner = {path[:depth] for path in leaves for depth in range(1, len(path))}
    for node in sorted(inner):
        depth = len(node)
        group = [i for i, path in enumerate(paths) if path[:depth] == node]
        parts = [paths[i][depth] for i in group]
        names = np.unique(parts).tolist()
        alike = part_affinities(examine(group).gradients(centre), parts)
        below = [leaf for leaf in leaves if leaf[:depth] == node]
        for one, two in combinations(below, 2):
            if one[depth] != two[depth]:
                row, column = names.index(one[depth]), names.index(two[depth])
                found[one, two] = float(alike[row, column])
    return found


def number_kin(
    kin: Mapping[tuple[Path, Path], float], numbers: Mapping[Path, int]
) -> dict[tuple[int, int], float]:
    """The same by clusters' numbers; clusters without a number are left out."""
    found: dict[tuple[int, int], float] = {}
    for (one, two), alike in kin.items():
        if one in numbers and two in numbers:
            low, high = sorted((numbers[one], numbers[two]))
            found[low, high] = alike
    return found


def describe_tree(paths: Sequence[Path]) -> list[object]:
    """Clusters as a nested list: a number is a cluster, a list one that was split into its parts.

    Args:
        paths: Of each cluster, by its number.
    """

    def below(numbers: Sequence[int], depth: int) -> list[object]:
        parts: dict[int, list[int]] = {}
        for number in numbers:
            parts.setdefault(paths[number][depth], []).append(number)
        return [
            own[0] if len(paths[own[0]]) == depth + 1 else below(own, depth + 1)
            for own in parts.values()
        ]

    return below(range(len(paths)), 0)
