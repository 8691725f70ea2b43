"""W of many clients: few distinct sparse rows, and which of them each client has.

A client learns from a handful of others, so a row of W has a handful of entries; clients of one
cluster may have one row in common. Stored so, W of n clients takes memory in proportion to n, and
whatever follows from a row is computed once. The pieces are those of `ops.graph.affinity` and
`ops.lowrank.mixing` under the same names; densified, they give the same numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.ops.lowrank.mixing import ROW_TOLERANCE

Edges = Any
"""A `scipy.sparse.csr_array` (scipy is not typed), float64."""

LARGEST_DENSE = 64
"""W of up to this many clients is a matrix; of more it is sparse rows."""

Places = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class SharedRows:
    """A row-stochastic W [n, n].

    Attributes:
        rows: The distinct rows [m, n], without stored zeros.
        which: The row of each client [n].
    """

    rows: Edges
    which: Places

    def dense(self) -> Tensor:
        """W as a matrix [n, n]."""
        return torch.from_numpy(self.rows.toarray()[self.which])


def tidy(edges: Edges) -> Edges:
    """The same matrix without stored zeros, columns in order."""
    # A copy, since what follows works in place.
    found = scipy.sparse.csr_array(edges, dtype=np.float64, copy=True)
    found.sum_duplicates()
    found.eliminate_zeros()
    found.sort_indices()
    return found


def symmetrise(edges: Edges) -> Edges:
    """The mean of both directions of [n, n]."""
    return tidy((edges + edges.T) / 2)


def row_normalise(edges: Edges) -> Edges:
    """Rows of [n, n] that sum to one; a client without neighbours keeps to itself."""
    total = np.asarray(edges.sum(axis=1)).reshape(-1)
    shares = (
        scipy.sparse.diags_array(np.divide(1.0, total, out=np.zeros_like(total), where=total > 0))
        @ edges
    )
    return tidy(shares + scipy.sparse.diags_array((total <= 0).astype(np.float64)))


def lazy(edges: Edges, eta: float | NDArray[np.float64]) -> Edges:
    """(1 - eta) I + eta * edges for row-normalised [n, n]; with eta = 0 exactly I."""
    steps = np.broadcast_to(np.asarray(eta, dtype=np.float64), edges.shape[0])
    if not bool(((steps >= 0) & (steps <= 1)).all()):
        raise ValueError(f"eta is {eta}; allowed: 0 to 1")
    return tidy(scipy.sparse.diags_array(1.0 - steps) + scipy.sparse.diags_array(steps) @ edges)


def even_steps(edges: Edges) -> NDArray[np.float64]:
    """The step of each row that averages out the most noise; see `affinity.even_steps`."""
    return 1.0 / (1.0 + np.asarray(edges.power(2).sum(axis=1)).reshape(-1))


def share_rows(edges: Edges) -> SharedRows:
    """W of a matrix [n, n]; rows with equal bits become one."""
    found = tidy(edges)
    numbers: dict[bytes, int] = {}
    which = np.empty(found.shape[0], dtype=np.int64)
    for k in range(found.shape[0]):
        own = slice(found.indptr[k], found.indptr[k + 1])
        key = found.indices[own].tobytes() + found.data[own].tobytes()
        which[k] = numbers.setdefault(key, len(numbers))
    first = np.unique(which, return_index=True)[1]
    return SharedRows(found[first], which)


def identity_rows(n: int) -> SharedRows:
    """Nobody learns from anybody: n rows of one entry each."""
    return SharedRows(tidy(scipy.sparse.eye_array(n)), np.arange(n))


def one_row(shares: Tensor) -> SharedRows:
    """Everybody has the row `shares` [n]."""
    row = shares.to(torch.float64).cpu().numpy()[None]
    return SharedRows(tidy(scipy.sparse.csr_array(row)), np.zeros(row.shape[1], dtype=np.int64))


def group_rows(labels: Sequence[Hashable], examples: Tensor) -> SharedRows:
    """Strict averaging inside groups, weighted by examples: one row for each group."""
    numbers: dict[Hashable, int] = {}
    which = np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)
    n, counts = len(which), examples.to(torch.float64).cpu().numpy()
    total = np.bincount(which, weights=counts, minlength=len(numbers))
    share = np.divide(counts, total[which], out=np.zeros(n), where=total[which] > 0)
    rows = tidy(scipy.sparse.csr_array((share, (which, np.arange(n))), shape=(len(numbers), n)))
    return keep_own(SharedRows(rows, which), total[which] == 0)


def check_rows(weights: SharedRows) -> None:
    """Raise unless `weights` is row-stochastic."""
    rows = weights.rows
    if rows.shape[1] != len(weights.which):
        raise ValueError(f"rows over {rows.shape[1]} clients for {len(weights.which)} clients")
    if not np.isfinite(rows.data).all():
        raise ValueError("a mixing matrix must be finite")
    if rows.data.min(initial=0.0) < 0:
        raise ValueError(f"mixing weights must not be negative, found {rows.data.min():.3g}")
    off = float(np.abs(np.asarray(rows.sum(axis=1)) - 1).max(initial=0.0))
    if off > ROW_TOLERANCE:
        raise ValueError(f"rows of a mixing matrix sum to one; one is off by {off:.3g}")


def same_rows(one: SharedRows, two: SharedRows) -> bool:
    """Whether two W are equal to the bit, however their rows are shared."""
    alike = one.rows.shape == two.rows.shape and np.array_equal(one.which, two.which)
    if alike and (one.rows != two.rows).nnz == 0:
        return True  # without a row for every client, which may be as many as W has entries
    gap = one.rows[one.which] != two.rows[two.which]
    return bool(gap.nnz == 0)


def keeps_own_row(weights: SharedRows) -> Mask:
    """Which rows are exactly e_k, bool [n]."""
    rows = weights.rows
    single = np.diff(rows.indptr) == 1
    column, value = np.full(rows.shape[0], -1), np.zeros(rows.shape[0])
    column[single] = rows.indices[rows.indptr[:-1][single]]
    value[single] = rows.data[rows.indptr[:-1][single]]
    alone: Mask = (column[weights.which] == np.arange(len(weights.which))) & (
        value[weights.which] == 1.0
    )
    return alone


def keep_own(weights: SharedRows, own: Mask) -> SharedRows:
    """The clients in `own` [n] keep what they have: their rows become e_k."""
    if not own.any():
        return weights
    n = len(weights.which)
    kept, which = np.unique(weights.which[~own], return_inverse=True)
    lonely = np.nonzero(own)[0]
    ones = scipy.sparse.csr_array(
        (np.ones(len(lonely)), (np.arange(len(lonely)), lonely)), shape=(len(lonely), n)
    )
    both = np.empty(n, dtype=np.int64)
    both[~own], both[own] = which, len(kept) + np.arange(len(lonely))
    return SharedRows(tidy(scipy.sparse.vstack([weights.rows[kept], ones])), both)


def restrict_columns(weights: SharedRows, allowed: Mask) -> SharedRows:
    """Nobody learns from clients that are not `allowed` [n]; see `ops.mixing.restrict`."""
    return _restrict(weights, lambda row, column: allowed[column])


def restrict_groups(weights: SharedRows, group: Places) -> SharedRows:
    """Clients learn from others of their own group alone; `group` is a number for each [n]."""
    pairs, which = np.unique(np.stack([weights.which, group]), axis=1, return_inverse=True)
    apart = SharedRows(weights.rows[pairs[0]], which.reshape(-1).astype(np.int64))
    return _restrict(apart, lambda row, column: pairs[1][row] == group[column])


def _restrict(weights: SharedRows, allowed: Any) -> SharedRows:  # noqa: ANN401 - a plain function
    rows = weights.rows
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    kept = np.where(allowed(owner, rows.indices), rows.data, 0.0)
    total = np.bincount(owner, weights=kept, minlength=rows.shape[0])
    lost = np.bincount(owner, weights=kept != rows.data, minlength=rows.shape[0]) > 0
    # Rows that lose nothing keep their bits.
    scale = np.where(lost & (total > 0), total, 1.0)
    shares = scipy.sparse.csr_array(
        (kept / scale[owner], rows.indices, rows.indptr), shape=rows.shape
    )
    found = SharedRows(tidy(shares), weights.which)
    return keep_own(found, (total == 0)[weights.which])


def by_acquaintance(weights: SharedRows, clients: Places, most: int) -> Places:
    """Some clients in an order in which those who learn from the same others are near each other.

    It is the reverse order of Cuthill and McKee. Rows over more than `most` clients do not count:
    through them everybody would be near everybody.
    """
    few = clients[np.diff(weights.rows.indptr)[weights.which[clients]] <= most]
    rows = weights.rows[weights.which[few]].tocoo()
    n = len(weights.which)
    graph = scipy.sparse.csr_array((rows.data, (few[rows.row], rows.col)), shape=(n, n))
    place = np.empty(n, dtype=np.int64)
    place[scipy.sparse.csgraph.reverse_cuthill_mckee(graph)] = np.arange(n)
    ordered: Places = clients[np.argsort(place[clients], kind="stable")]
    return ordered
