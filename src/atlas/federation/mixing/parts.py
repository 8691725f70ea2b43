"""Many clients a part at a time, so that what is in memory does not grow with their number.

Few clients are one part. Of many, a part is as many as have adapters of `PART_BYTES` together:
whether the server keeps adapters in memory or on disk, the parts are the same, and so the bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from atlas.federation.adapters.cohort import Cohort
from atlas.federation.mixing.apply import Weights, mix_cohort
from atlas.federation.routing.masks import Routes
from atlas.ops.graph import sparse_rows as sparse
from atlas.ops.graph.sparse_rows import LARGEST_DENSE, SharedRows

PART_BYTES = 1 << 24
"""What the adapters of the clients of one part take."""


def parts_of(cohorts: Mapping[str, Cohort], clients: Sequence[str]) -> Iterator[list[str]]:
    """Some clients of some cohorts, in the order given, a part at a time."""
    everybody = sum(len(cohort.clients) for cohort in cohorts.values())
    size = max(1, len(clients))
    if everybody > LARGEST_DENSE:
        size = max(1, PART_BYTES // max(client_bytes(cohort) for cohort in cohorts.values()))
    for start in range(0, len(clients), size):
        yield list(clients[start : start + size])


def client_bytes(cohort: Cohort) -> int:
    """What one client's padded adapter takes."""
    return sum(value[0].nbytes for value in cohort.tensors.values())


def mix_part(  # noqa: PLR0913
    cohort: Cohort,
    weights: Weights,
    some: Sequence[str],
    *,
    space: str,
    heads: str,
    align: str = "none",
    routes: Routes | None = None,
) -> Cohort:
    """The mixtures of some clients, in that order, from nothing but the adapters in them.

    Where all clients are asked for, or W is a matrix, the whole cohort is mixed.

    Args:
        cohort: The adapters as trained.
        weights: W of the whole cohort.
        some: Who receives.
        space: See `mix_cohort`.
        heads: See `mix_cohort`.
        align: See `mix_cohort`.
        routes: See `mix_cohort`; of the whole cohort.
    """
    how = {"space": space, "heads": heads, "align": align}
    if not isinstance(weights, SharedRows) or len(some) == len(cohort.clients):
        mixed = mix_cohort(cohort, weights, **how, routes=routes)
        return mixed if len(some) == len(cohort.clients) else mixed.select(some)
    receivers = cohort.index(some).numpy()
    chosen, which = np.unique(weights.which[receivers], return_inverse=True)
    rows = weights.rows[chosen]
    needed = np.union1d(receivers, rows.indices)
    column = np.searchsorted(needed, receivers)
    whose = np.zeros(len(needed), dtype=np.int64)
    whose[column] = which
    beside = np.ones(len(needed), dtype=np.bool_)
    beside[column] = False
    # Those who are mixed but do not receive need a row too: their own, which costs nothing.
    own = sparse.keep_own(SharedRows(sparse.tidy(rows[:, needed]), whose), beside)
    part = cohort.select([cohort.clients[k] for k in needed.tolist()])
    masks = routes and routes.select(torch.from_numpy(needed))
    return mix_cohort(part, own, **how, routes=masks).select(some)
