"""From what is known of the clients to W, a matrix; `relations_sparse` makes it of many clients.

The pieces are those of `ops.graph.affinity`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from atlas.federation.strategies.base import View
from atlas.federation.strategies.scales import alphas_of, kin_of, neighbours_wanted
from atlas.ops.clustering.clusters import Floats
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
    features = features_of(view)
    everybody = torch.arange(len(features), device=features.device)
    alphas = alphas_of(view, features).between(everybody[:, None], everybody)
    found = AFFINITIES[view.settings.affinity](features, alphas)
    known = features.square().sum(1) > 0
    if (wishes := wishes_of(view)) is not None:
        found = wishes.to(found)
    identity = torch.eye(len(features), dtype=found.dtype, device=found.device)
    return torch.where(known[:, None] & known, found, identity)


def wishes_of(view: View) -> Tensor | None:
    """How far clients want the same [n, n], where cosines of features tell nothing; else None.

    Centred, two clients are opposite whatever they do, and clients of whom no split is known point
    anywhere, away from each other more often than not. Runs from before that keep what they had.
    """
    settings = view.settings
    if settings.affinity != "cosine" or settings.scale == "unit":
        return None
    known = features_of(view).square().sum(1) > 0
    labels = np.asarray(view.clusters or range(len(known)))[known.cpu().numpy()]
    alike = int(known.sum()) == 2 or len(np.unique(labels)) == 1
    return view.agreement if alike else None


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
    if view.clusters is not None and weighs_steps(view):
        factors = group_factors(view.clusters, view.settings.cross, kin_of(view))
        near = closest_factors(edges, factors)
    return lazy(shares, near * step_of(view, even_steps(shares)))


def weighs_steps(view: View) -> bool:
    """Whether steps hang on how near the clusters are that are heard; not in runs from before."""
    return view.settings.scale != "unit"


def step_of(view: View, even: Steps) -> Steps | float:
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
    return shares_of_norms(view).expand(len(view.clients), -1).clone()


def shares_of_norms(view: View) -> Tensor:
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


def features_of(view: View) -> Tensor:
    """Fingerprints [n, d] of a view that must have them."""
    if view.features is None:
        raise ValueError("this relation needs fingerprints")
    return view.features
