"""From features of clients to who learns from whom: small pieces that compose.

An affinity is a square float64 matrix a [n, n] with no negative entries; a[k, l] says how much
client k is drawn to client l. A usual chain is

    lazy(row_normalise(symmetrise(nearest(within(without_self(rbf(f, alpha)), labels), 3))), eta)

Symmetrising comes before row-normalising: the other way round rows would no longer sum to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def unit_rows(features: Tensor) -> Tensor:
    """Rows of length one; a zero row stays zero."""
    exact = features.to(torch.float64)
    length = exact.square().sum(dim=1, keepdim=True).sqrt()
    return exact / length.clamp_min(torch.finfo(torch.float64).tiny)


def rbf(features: Tensor, alpha: float | Tensor) -> Tensor:
    """exp(-alpha * squared distance) of unit-length features; ones on the diagonal.

    Args:
        features: [n, d].
        alpha: One for all, or one for each pair [n, n].
    """
    unit = unit_rows(features)
    gaps = unit[:, None] - unit[None]
    return torch.exp(-alpha * gaps.square().sum(-1))


def cosine(features: Tensor) -> Tensor:
    """Cosine of features, opposite directions counting as nothing in common."""
    unit = unit_rows(features)
    return (unit @ unit.T).clamp(0.0, 1.0)


def tempered(features: Tensor, temperature: float) -> Tensor:
    """exp((cosine - 1) / temperature): row-normalised, a softmax of cosines; ones for equals.

    A client of which nothing is known, a zero row, is like nobody, itself included.
    """
    unit = unit_rows(features)
    known = unit.square().sum(1) > 0
    found = torch.exp(((unit @ unit.T).clamp(-1.0, 1.0) - 1.0) / temperature)
    return torch.where(known[:, None] & known, found, 0.0)


def without_self(affinity: Tensor) -> Tensor:
    """No client is its own neighbour."""
    return affinity - torch.diag(torch.diagonal(affinity))


def nearest(affinity: Tensor, count: int) -> Tensor:
    """Keep the `count` largest entries of each row; of equals, the earlier client's."""
    kept = torch.zeros_like(affinity)
    order = torch.argsort(affinity, dim=1, descending=True, stable=True)[:, :count]
    return kept.scatter(1, order, affinity.gather(1, order))


def symmetrise(affinity: Tensor) -> Tensor:
    """The mean of both directions."""
    return (affinity + affinity.T) / 2


def within(
    affinity: Tensor,
    labels: Sequence[object],
    cross: float = 0.0,
    kin: Mapping[tuple[int, int], float] | None = None,
) -> Tensor:
    """Keep edges inside groups; edges across are multiplied by `cross`; see `group_factors`."""
    return affinity * group_factors(labels, cross, kin).to(affinity)


def group_factors(
    labels: Sequence[object],
    cross: float = 0.0,
    kin: Mapping[tuple[int, int], float] | None = None,
) -> Tensor:
    """What edges count by the groups of both ends [n, n], float64; 1 inside a group.

    Args:
        labels: Group of each client.
        cross: Factor on edges between groups.
        kin: Larger factors on edges between some pairs of groups, either way round.
    """
    factors: dict[tuple[object, object], float] = {}
    for (one, two), factor in (kin or {}).items():
        factors[one, two] = factors[two, one] = factor
    rows = [
        [1.0 if own == other else max(cross, factors.get((own, other), 0.0)) for other in labels]
        for own in labels
    ]
    return torch.tensor(rows, dtype=torch.float64)


def closest_factors(edges: Tensor, factors: Tensor) -> Tensor:
    """The largest factor on any edge of each client [n]: how near the nearest group it hears is.

    Rows are normalised, so a client whose edges are all weak would take as large a step as one
    among its own; its step is to be multiplied by this. 1 without edges; edges of factor 0 were
    added on purpose and count in full.
    """
    counted = torch.where(factors > 0, factors, 1.0).to(edges)
    largest = torch.where(edges > 0, counted, 0.0).amax(1)
    return torch.where(largest > 0, largest, 1.0)


def connect_singletons(affinity: Tensor, whole: Tensor) -> Tensor:
    """Give a client without neighbours its strongest edge of `whole`, in both directions.

    Args:
        affinity: Edges that are left, zero diagonal.
        whole: Edges before groups and neighbours were cut, zero diagonal.
    """
    joined = affinity.clone()
    lonely = (affinity.sum(1) == 0) & (affinity.sum(0) == 0)
    for k in torch.nonzero(lonely).flatten().tolist():
        other = int(torch.argmax(whole[k]))
        joined[k, other] = joined[other, k] = torch.maximum(joined[k, other], whole[k, other])
    return joined


def row_normalise(affinity: Tensor) -> Tensor:
    """Rows that sum to one; a client without neighbours keeps to itself."""
    total = affinity.sum(1, keepdim=True)
    identity = torch.eye(len(affinity), dtype=affinity.dtype, device=affinity.device)
    shares = affinity / total.clamp_min(torch.finfo(affinity.dtype).tiny)
    return torch.where(total > 0, shares, identity)


def lazy(weights: Tensor, eta: float | Tensor) -> Tensor:
    """(1 - eta) I + eta * weights: with eta = 0 everybody keeps their own, bit for bit.

    For a row-normalised affinity this is I - eta * L with the random-walk Laplacian
    L = I - D^-1 a, one step of diffusion over the graph of clients.

    Args:
        weights: Row-normalised [n, n].
        eta: One step for all, or one for each row [n].
    """
    steps = torch.as_tensor(eta, dtype=weights.dtype, device=weights.device).reshape(-1, 1)
    if not bool(((steps >= 0) & (steps <= 1)).all()):
        raise ValueError(f"eta is {eta}; allowed: 0 to 1")
    identity = torch.eye(len(weights), dtype=weights.dtype, device=weights.device)
    return (1.0 - steps) * identity + steps * weights


def even_steps(weights: Tensor) -> Tensor:
    """The step of each row [n] that averages out the most noise, 1 / (1 + sum of p^2).

    Where everybody wants the same and is off by noise of the same size, the mean of neighbours
    with shares p is off by the sum of p^2 of it; own and mean are best weighed by the inverse of
    theirs. Among k alike neighbours that is k / (k + 1): one's own counts as one of k + 1.
    """
    return 1.0 / (1.0 + weights.square().sum(1))


def group_shares(labels: Sequence[object], examples: Tensor) -> Tensor:
    """Strict averaging inside groups, weighted by examples; others count nothing."""
    same = within(torch.ones(len(labels), len(labels), dtype=torch.float64), labels)
    return row_normalise(same * examples.to(torch.float64))
