"""From groups found in a sample of the clients to groups of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from atlas.ops.clustering.clusters import (
    Floats,
    KMetrics,
    Labels,
    as_points,
    canonical,
    score_partition,
)

MINIBATCH = 1024
PASSES = 20
"""Most times that mini-batches go through all clients."""

JUDGED = 2000
"""Most clients by whom a partition is scored: a silhouette compares all pairs."""


def extend_labels(
    features: Floats | Tensor, sample: Sequence[int], labels: Sequence[int], seed: int
) -> Labels:
    """Group everybody by k-means in mini-batches that begins at the groups of a sample.

    A group of one in the sample says nothing of others and is left out, unless all are.

    Args:
        features: Of all clients [n, d].
        sample: Positions of the clients that have been grouped.
        labels: Their groups.
        seed: Of the mini-batches.

    Returns:
        A group for each client [n].
    """
    points, found = as_points(features), np.asarray(labels)
    names, counts = np.unique(found, return_counts=True)
    usable = names[counts > 1] if (counts > 1).any() else names
    if len(usable) == 1:
        return (0,) * len(points)
    rows = points[np.asarray(sample)]
    centres = np.stack([rows[found == name].mean(0) for name in usable])
    # Sorted by value, so that mini-batches do not depend on the order clients are listed in.
    order = np.lexsort(points.T[::-1])
    from sklearn.cluster import MiniBatchKMeans  # as in `clusters`

    model = MiniBatchKMeans(
        len(centres),
        init=centres,
        n_init=1,
        batch_size=MINIBATCH,
        max_iter=PASSES,
        reassignment_ratio=0.0,
        random_state=seed % 2**32,
    )
    placed = np.empty(len(points), dtype=np.int64)
    placed[order] = model.fit_predict(points[order])
    return canonical(placed.tolist())


def score_sampled(features: Floats | Tensor, labels: Labels, seed: int) -> KMetrics:
    """`score_partition` by at most `JUDGED` clients, drawn by chance; labels are those of all."""
    points = as_points(features)
    if len(points) <= JUDGED:
        return score_partition(points, labels)
    drawn = np.sort(np.random.default_rng(seed).choice(len(points), JUDGED, replace=False))
    judged = score_partition(points[drawn], [labels[i] for i in drawn])
    return replace(judged, k=len(set(labels)), labels=labels)
