"""How far apart the clients of a cluster are: what mixing is there to reduce."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch

from atlas.federation.adapters.cohort import Cohort
from atlas.ops.anchor import product_gap


def cluster_distance(cohort: Cohort, clusters: Sequence[int] | None) -> float | None:
    """Mean distance between the delta W of two clients of one cluster, all modules together.

    Args:
        cohort: Adapters.
        clusters: Cluster of each client; None: all are in one.

    Returns:
        The distance, or None if every client is alone.
    """
    labels = [0] * len(cohort.clients) if clusters is None else list(clusters)
    pairs = [(i, j) for i, j in combinations(range(len(labels)), 2) if labels[i] == labels[j]]
    if not pairs:
        return None
    one, two = torch.tensor(pairs).T
    squares = torch.zeros(len(pairs), dtype=torch.float64)
    for number, module in enumerate(cohort.layout.modules):
        a = cohort.tensors[f"lora_a/{module}"].to(torch.float64)
        scales = cohort.scales(number).to(a.device)
        b = cohort.tensors[f"lora_b/{module}"].to(torch.float64) * scales[:, None, None]
        squares += product_gap((a[one], b[one]), (a[two], b[two])).cpu()
    return float(squares.sqrt().mean())
