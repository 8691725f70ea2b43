"""The relations of `federation.strategies.relations` for many clients: W as sparse rows.

Up to `LARGEST_DENSE` clients W is a matrix, as it is logged and drawn. Beyond, a matrix of all
pairs would cost memory and time in proportion to their square, and mixing with it even more.
"""

from __future__ import annotations

from functools import partial

import scipy
from torch import Tensor

from atlas.federation.strategies.base import View
from atlas.federation.strategies.relations import WHOLE_STEP, alpha_of, cluster_mean, diffusion
from atlas.ops.graph.near_edges import PAIRS, connect_lonely, near_edges
from atlas.ops.graph.sparse_rows import (
    LARGEST_DENSE,
    Edges,
    SharedRows,
    even_steps,
    group_rows,
    lazy,
    row_normalise,
    share_rows,
    symmetrise,
)


def scaled_diffusion(view: View) -> Tensor | SharedRows:
    """`diffusion`, sparse for many clients."""
    return diffusion(view) if len(view.clients) <= LARGEST_DENSE else sparse_diffusion(view)


def scaled_cluster_mean(view: View) -> Tensor | SharedRows:
    """`cluster_mean`, sparse for many clients."""
    return cluster_mean(view) if len(view.clients) <= LARGEST_DENSE else sparse_cluster_mean(view)


def sparse_diffusion(view: View) -> SharedRows:
    """One step over the graph of near clients; see `relations.diffusion`.

    Settings under which everybody has all others as neighbours leave nothing to search for: the
    matrix of all pairs is made after all.
    """
    settings = view.settings
    if settings.nearest is None or settings.affinity not in PAIRS:
        return share_rows(scipy.sparse.csr_array(diffusion(view).cpu().numpy()))
    shares, eta = sparse_neighbours(view), settings.eta
    if eta == "even":
        return share_rows(lazy(shares, even_steps(shares)))
    return share_rows(lazy(shares, WHOLE_STEP if eta == "auto" else eta))


def sparse_neighbours(view: View) -> Edges:
    """Row-normalised edges [n, n]; see `relations.neighbours`."""
    settings, features = view.settings, view.features
    if features is None or settings.nearest is None:
        raise ValueError("sparse neighbours need fingerprints and a number of neighbours")
    alike = partial(PAIRS[settings.affinity], alpha_of(view))
    edges = symmetrise(near_edges(features, view.clusters, settings.nearest, settings.cross, alike))
    if settings.singletons == "joined":
        edges = connect_lonely(edges, features, alike)
    return row_normalise(edges)


def sparse_cluster_mean(view: View) -> SharedRows:
    """The data-weighted mean of one's own cluster: one row for each cluster."""
    if view.clusters is None:
        raise ValueError("there are no clusters to average in")
    return group_rows(view.clusters, view.examples)
