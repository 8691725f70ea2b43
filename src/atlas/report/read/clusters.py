"""Where the clusters in use come from, as a plan describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Origin(NamedTuple):
    """Which of the splits that were tried the clusters come from.

    Attributes:
        k: Its number of clusters.
        parted: Whether some of these were split again.
        dropped: How many were not kept, as a sample held but one client of each.
    """

    k: int
    parted: bool
    dropped: int

    @property
    def used(self) -> bool:
        """Whether that split is the partition in use, clusters that were dropped aside."""
        return not self.parted


def origin_of(clusters: Mapping[str, Any]) -> Origin:
    """Where described clusters come from; plans did not always tell, and are taken at their k."""
    k, tree = int(clusters["k"]), clusters.get("tree")
    first = int(clusters.get("first") or k)
    if tree is None:
        return Origin(first, first != k, 0)
    return Origin(first, any(isinstance(part, list) for part in tree), max(0, first - len(tree)))
