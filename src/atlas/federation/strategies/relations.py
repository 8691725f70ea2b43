"""From what is known of the clients to W, dense for few clients and sparse for many.

The dense relations are made of pieces of `ops.graph.affinity`, the sparse ones of pieces of the
same names in `ops.graph.sparse_rows`; densified, both give the same numbers. Up to `LARGEST_DENSE`
clients W is a matrix, as it is logged and drawn. Beyond, a matrix of all pairs would cost memory
and time in proportion to their square, and mixing with it even more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import numpy as np
import scipy
import torch
from torch import Tensor

from atlas.federation.strategies.base import Relation, View, data_shares, identity
from atlas.federation.strategies.scales import alphas_of, kin_of, neighbours_wanted
from atlas.ops.clustering.clusters import Floats
from atlas.ops.graph import sparse_rows as sparse
from atlas.ops.graph.affinity import (
    closest_factors,
    connect_singletons,
    cosine,
    even_steps,
    group_factors,
    group_shares,
    lazy,
    nearest,
    rbf,
    row_normalise,
    symmetrise,
    tempered,
    unit_rows,
    within,
    without_self,
)
from atlas.ops.graph.neighbours import (
    PAIRS,
    connect_lonely,
    near_edges,
    pair_tempered,
)
from atlas.ops.graph.neighbours import closest_factors as near_factors
from atlas.ops.graph.sparse_rows import (
    LARGEST_DENSE,
    Edges,
    SharedRows,
    group_rows,
    identity_rows,
    one_row,
    share_rows,
)
from atlas.ops.similarity import centred

AFFINITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rbf": rbf,
    "cosine": lambda features, alpha: cosine(features),
    "uniform": lambda features, alpha: torch.ones(len(features), len(features)).to(features),
}

Steps = TypeVar("Steps", Tensor, Floats)

WHOLE_STEP = 1.0
FEWEST_CENTRED = 3
"""Of two clients, centred signatures are opposite whatever they are."""


def affinity(view: View) -> Tensor:
    """How alike clients are, ones on the diagonal; an unknown client is like nobody."""
    features = _features(view)
    everybody = torch.arange(len(features), device=features.device)
    alphas = alphas_of(view, features).between(everybody[:, None], everybody)
    found = AFFINITIES[view.settings.affinity](features, alphas)
    known = features.square().sum(1) > 0
    if view.agreement is not None and says_nothing_centred(view, known):
        found = view.agreement.to(found)
    identity = torch.eye(len(features), dtype=found.dtype, device=found.device)
    return torch.where(known[:, None] & known, found, identity)


def says_nothing_centred(view: View, known: Tensor) -> bool:
    """Whether cosines of features tell nothing, so that wishes are compared as they are instead.

    Centred, two clients are opposite whatever they do, and clients of whom no split is known point
    anywhere, away from each other more often than not. Runs from before that keep what they had.

    Args:
        view: Its settings and clusters.
        known: Whose features are known.
    """
    settings = view.settings
    labels = np.asarray(view.clusters or range(len(known)))[known.cpu().numpy()]
    alike = int(known.sum()) == 2 or len(np.unique(labels)) == 1
    return settings.affinity == "cosine" and settings.scale != "unit" and alike


def neighbours(view: View) -> Tensor:
    """Row-normalised edges: alike, within clusters if there are any, the nearest, symmetric."""
    return row_normalise(_edges(view))


def _edges(view: View) -> Tensor:
    settings = view.settings
    whole = without_self(affinity(view))
    edges = whole
    if view.clusters is not None:
        edges = within(edges, view.clusters, settings.cross, kin_of(view))
    if (count := neighbours_wanted(view)) is not None:
        edges = nearest(edges, count)
    edges = symmetrise(edges)
    if settings.singletons == "joined":
        edges = connect_singletons(edges, whole)
    return edges


def diffusion(view: View) -> Tensor:
    """One step over the graph of clients, W = I - eta L with the random-walk Laplacian L.

    With eta `auto` the whole step is offered and each client takes the share that suits it. With
    `shrink` it is that of `even`, of which each client takes what is estimated afterwards. Whoever
    hears other clusters alone takes as much less of a step as these have less in common with it.
    """
    edges = _edges(view)
    shares = row_normalise(edges)
    near = torch.ones(len(edges)).to(edges)
    if view.clusters is not None:
        near = closest_factors(
            edges, group_factors(view.clusters, view.settings.cross, kin_of(view))
        )
    return lazy(shares, near * _step(view, even_steps(shares)))


def _step(view: View, even: Steps) -> Steps | float:
    """The step of all, or of each client."""
    eta = view.settings.eta
    if eta == "even" or eta == "shrink":  # noqa: PLR1714 - mypy does not narrow by `in`
        return even
    return WHOLE_STEP if eta == "auto" else eta


def cluster_mean(view: View) -> Tensor:
    """The data-weighted mean of one's own cluster."""
    if view.clusters is None:
        raise ValueError("there are no clusters to average in")
    return group_shares(view.clusters, view.examples)


def same_task(view: View) -> Tensor:
    """The data-weighted mean of the clients of one's own task."""
    return group_shares(view.tasks, view.examples)


def norm_shares(view: View) -> Tensor:
    """Everybody holds the same mixture; who changes the model more counts for more in it."""
    return _shares_of_norms(view).expand(len(view.clients), -1).clone()


def _shares_of_norms(view: View) -> Tensor:
    """What each client counts [n]: by its norm, or by its examples while nothing is learned."""
    if view.norms is None:
        raise ValueError("this relation needs the norms of the adapters")
    norms = view.norms()
    found = norms if bool(norms.any()) else view.examples
    return found / found.sum()


def relevance(view: View) -> Tensor:
    """Softmax of the cosines of signatures over the others, oneself left out.

    A client of which nothing is known keeps its own, as does one who knows of nobody else.
    """
    settings = view.relevance
    edges = without_self(tempered(directions(view), settings.temperature))
    return row_normalise(nearest(edges, settings.nearest))


def directions(view: View) -> Tensor:
    """Signatures as they are compared [n, d]: of length one, then centred over known clients.

    Length first: how long a gradient is says how badly the probe answers, not what it would learn,
    and must not decide what everybody is centred on.
    """
    if view.signatures is None:
        raise ValueError("this relation needs signatures")
    unit = unit_rows(view.signatures)
    known = unit.square().sum(1) > 0
    if not view.relevance.centre or int(known.sum()) < FEWEST_CENTRED:
        return unit
    found = torch.zeros_like(unit)
    found[known] = centred(unit[known])
    return found


def _features(view: View) -> Tensor:
    if view.features is None:
        raise ValueError("this relation needs fingerprints")
    return view.features


def sparse_diffusion(view: View) -> SharedRows:
    """One step over the graph of near clients; see `diffusion`.

    Settings under which everybody has all others as neighbours leave nothing to search for: the
    matrix of all pairs is made after all.
    """
    settings = view.settings
    if neighbours_wanted(view) is None or settings.affinity not in PAIRS:
        return share_rows(scipy.sparse.csr_array(diffusion(view).cpu().numpy()))
    edges = _sparse_edges(view)
    shares = sparse.row_normalise(edges)
    near = np.ones(len(view.clients))
    if view.clusters is not None:
        near = near_factors(edges, view.clusters, settings.cross, kin_of(view))
    return share_rows(sparse.lazy(shares, near * _step(view, sparse.even_steps(shares))))


def sparse_neighbours(view: View) -> Edges:
    """Row-normalised edges [n, n]; see `neighbours`."""
    return sparse.row_normalise(_sparse_edges(view))


def _sparse_edges(view: View) -> Edges:
    settings, features, count = view.settings, _features(view), neighbours_wanted(view)
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
    return one_row(_shares_of_norms(view))


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
