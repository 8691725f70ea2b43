"""The relations of many clients: the same W as `relations` makes, in sparse rows.

A matrix of all pairs would cost memory and time in proportion to their square, and mixing with it
even more. Pieces are those of `ops.graph.sparse_rows`; densified, both ways give the same numbers.
Up to `LARGEST_DENSE` clients W is a matrix, as it is logged and drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np
import scipy
from torch import Tensor

from atlas.federation.strategies.base import Relation, View, data_shares, identity
from atlas.federation.strategies.relations import (
    cluster_mean,
    diffusion,
    directions,
    features_of,
    norm_shares,
    relevance,
    same_task,
    shares_of_norms,
    step_of,
    weighs_steps,
    wishes_of,
)
from atlas.federation.strategies.scales import alphas_of, kin_of, neighbours_wanted
from atlas.ops.graph import sparse_rows as sparse
from atlas.ops.graph.affinity import unit_rows
from atlas.ops.graph.neighbours import (
    PAIRS,
    closest_factors,
    connect_lonely,
    near_edges,
    pair_tempered,
)
from atlas.ops.graph.sparse_rows import (
    LARGEST_DENSE,
    Edges,
    SharedRows,
    group_rows,
    identity_rows,
    one_row,
    share_rows,
)


def sparse_diffusion(view: View) -> SharedRows:
    """One step over the graph of near clients; see `diffusion`.

    Settings under which everybody has all others as neighbours leave nothing to search for, and
    wishes are measured for all pairs of a few: the matrix of all pairs is made after all.
    """
    settings = view.settings
    unsearchable = settings.affinity not in PAIRS or wishes_of(view) is not None
    if neighbours_wanted(view) is None or unsearchable:
        return share_rows(scipy.sparse.csr_array(diffusion(view).cpu().numpy()))
    edges = _sparse_edges(view)
    shares = sparse.row_normalise(edges)
    near = np.ones(len(view.clients))
    if view.clusters is not None and weighs_steps(view):
        near = closest_factors(edges, view.clusters, settings.cross, kin_of(view))
    return share_rows(sparse.lazy(shares, near * step_of(view, sparse.even_steps(shares))))


def sparse_neighbours(view: View) -> Edges:
    """Row-normalised edges [n, n]; see `neighbours`."""
    return sparse.row_normalise(_sparse_edges(view))


def _sparse_edges(view: View) -> Edges:
    settings, features, count = view.settings, features_of(view), neighbours_wanted(view)
    if count is None:
        raise ValueError("sparse neighbours need a number of neighbours")
    pair, alphas, unit = PAIRS[settings.affinity], alphas_of(view, features), unit_rows(features)

    def alike(one: Tensor, two: Tensor) -> Tensor:
        return pair(alphas.between(one, two), unit[one], unit[two])

    near = near_edges(features, view.clusters, count, settings.cross, alike, kin_of(view))
    edges = sparse.symmetrise(near)
    if settings.singletons == "joined":
        edges = connect_lonely(edges, features, alike)
    return edges


def sparse_relevance(view: View) -> SharedRows:
    """Softmax over the most relevant others; see `relevance`."""
    settings = view.relevance
    found = directions(view)
    unit = unit_rows(found)

    def alike(one: Tensor, two: Tensor) -> Tensor:
        return pair_tempered(settings.temperature, unit[one], unit[two])

    near = near_edges(found, None, settings.nearest, 0.0, alike)
    return share_rows(sparse.row_normalise(near))


def sparse_cluster_mean(view: View) -> SharedRows:
    """The data-weighted mean of one's own cluster: one row for each cluster."""
    if view.clusters is None:
        raise ValueError("there are no clusters to average in")
    return group_rows(view.clusters, view.examples)


def sparse_identity(view: View) -> SharedRows:
    """Nobody learns from anybody; see `base.identity`."""
    return identity_rows(len(view.clients))


def sparse_data_shares(view: View) -> SharedRows:
    """The one row that everybody has; see `base.data_shares`."""
    return one_row(view.examples / view.examples.sum())


def sparse_norm_shares(view: View) -> SharedRows:
    """The one row that everybody has; see `norm_shares`."""
    return one_row(shares_of_norms(view))


def sparse_same_task(view: View) -> SharedRows:
    """One row for each task; see `same_task`."""
    return group_rows(view.tasks, view.examples)


def by_size(few: Callable[[View], Tensor], many: Callable[[View], SharedRows]) -> Relation:
    """A relation that is a matrix for few clients and sparse rows for many."""

    @wraps(few)  # what W is, is the same; lists of strategies read it there
    def relation(view: View) -> Tensor | SharedRows:
        return few(view) if len(view.clients) <= LARGEST_DENSE else many(view)

    return relation


scaled_identity = by_size(identity, sparse_identity)
scaled_data_shares = by_size(data_shares, sparse_data_shares)
scaled_norm_shares = by_size(norm_shares, sparse_norm_shares)
scaled_same_task = by_size(same_task, sparse_same_task)
scaled_cluster_mean = by_size(cluster_mean, sparse_cluster_mean)
scaled_diffusion = by_size(diffusion, sparse_diffusion)
scaled_relevance = by_size(relevance, sparse_relevance)
