"""What a reader of a plan should know: impure clusters, and clients with few to learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import scipy
from torch import Tensor

from atlas.federation.fingerprints.clusters import PURE, Clusters
from atlas.federation.fingerprints.tree import Kin
from atlas.ops.clustering.clusters import purity
from atlas.ops.graph.sparse_rows import SharedRows

FEW = 2
"""Members of a cluster that is warned of."""

MOST_NAMED = 5
"""Clients named in a warning; the rest is counted."""


def cluster_warnings(clusters: Clusters, tasks: Sequence[str]) -> list[str]:
    """What a reader should know of how clusters and tasks agree."""
    mean, weighted = purity(clusters.labels, tasks)
    if min(mean, weighted) >= PURE:
        return []
    return [f"clusters hold several tasks: purity {mean:.2f}, by size {weighted:.2f}, below {PURE}"]


def heard_by(clients: Sequence[str], weights: Tensor | SharedRows) -> dict[str, int]:
    """How many others each client learns from, by W [n, n] or [modules, n, n]."""
    if isinstance(weights, SharedRows):
        rows = weights.rows[weights.which]
    else:
        whole = weights.mean(0) if weights.dim() == 3 else weights
        rows = scipy.sparse.csr_array(whole.cpu().numpy())
    others = np.diff(rows.indptr) - (rows.diagonal() > 0)
    return dict(zip(clients, others.tolist(), strict=True))


def size_warnings(
    clusters: Clusters, clients: Sequence[str], heard: Mapping[str, int], kin: Kin
) -> list[str]:
    """Who has nobody, or one other, to learn from, and what that means for it.

    Clusters alone do not tell: edges to other clusters, or their lack, are a matter of settings.

    Args:
        clusters: Of the clients.
        clients: Ids.
        heard: How many others each learns from.
        kin: Factors on edges between clusters that were one, where these count.
    """
    if len(clients) < 2:
        return []
    size: dict[int, int] = {}
    for label in clusters.labels:
        size[label] = size.get(label, 0) + 1
    parts = {number for pair, alike in kin.items() if alike > 0 for number in pair}
    kinds: dict[str, list[str]] = {}
    for client, label in zip(clients, clusters.labels, strict=True):
        kind = _kind(size[label], heard[client], label in parts)
        kinds.setdefault(kind, []).append(client)
    return [words.format(named(kinds[kind])) for kind, words in WORDS.items() if kind in kinds]


def _kind(size: int, others: int, has_kin: bool) -> str:
    """Which of the `WORDS` fit a client of a cluster of that size; for most none of them does."""
    if size == 1 and others:
        return "part" if has_kin else "joined"
    if others == 0:
        return "alone" if size == 1 else "apart"
    return "pair" if size == FEW and others == 1 else ""


WORDS = {
    "alone": "alone in a cluster: {}; nobody's adapter is mixed into theirs, so the federation "
    "gives them nothing that training alone would not (under strategy=atlas, "
    "relation.singletons=joined gives them their nearest, whom they resemble little)",
    "apart": "without neighbours in their cluster: {}; nobody's adapter is mixed into theirs, "
    "since by the settings of `relation` they are like nobody or take no step",
    "part": "alone in a part of a cluster: {}; they learn from the other parts, by what they have "
    "in common",
    "joined": "alone in a cluster: {}; they learn only from clients of other clusters, whom they "
    "resemble little",
    "pair": "in a cluster of two: {}; each has one other to learn from, and the noise of both is "
    "halved at best",
}


def named(clients: Sequence[str]) -> str:
    """The first few of them by name, the others counted."""
    more = len(clients) - MOST_NAMED
    return ", ".join(clients[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
