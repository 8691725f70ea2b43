"""Where the clusters in use come from, as a plan describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Origin(NamedTuple):
    """Which of the splits that were tried the clusters come from.

    Attributes:
        k: Its number of clusters.
        parted: Whether some of these were split again; else that split is the partition in use,
            clusters that were dropped aside.
        dropped: How many were not kept, as a sample held but one client of each.
    """

    k: int
    parted: bool
    dropped: int


def origin_of(clusters: Mapping[str, Any]) -> Origin:
    """Where described clusters come from; plans did not always tell, and are taken at their k."""
    k, tree = int(clusters["k"]), clusters.get("tree")
    first = int(clusters.get("first") or k)
    if tree is None:
        return Origin(first, first != k, 0)
    return Origin(first, any(isinstance(part, list) for part in tree), max(0, first - len(tree)))


def tree_text(tree: Sequence[Any]) -> str:
    """Clusters by number, parts of one cluster in brackets."""
    parts = (f"[{tree_text(p)}]" if isinstance(p, list) else str(p) for p in tree)
    return " ".join(parts)
