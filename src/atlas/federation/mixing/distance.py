"""How far clients of a cohort are apart, in the space that is mixed; nothing dense is formed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

from atlas.federation.adapters.adapter import heads_of
from atlas.federation.adapters.cohort import Cohort
from atlas.ops.lowrank.factors import product_gap

PAIRS_AT_ONCE = 64
"""Pairs of clients whose factors are in memory twice over at a time."""


def squared_gaps(cohort: Cohort, one: Tensor, two: Tensor) -> Tensor:
    """The squared distance of the delta W of pairs of clients, all modules together; float64.

    Args:
        cohort: Adapters.
        one: Places of the first of each pair [m].
        two: Places of the second.
    """
    squares = torch.zeros(len(one), dtype=torch.float64)
    for number in range(len(cohort.layout.modules)):
        layer = cohort.layer(number)
        a, b = layer.a, layer.b
        scales = layer.scales[:, None, None]
        for some in torch.split(torch.arange(len(one)), PAIRS_AT_ONCE):
            both = [(a[i].double(), b[i].double() * scales[i]) for i in (one[some], two[some])]
            squares[some] += product_gap(*both).cpu()
    return squares


def squared_head_gaps(cohort: Cohort, one: Tensor, two: Tensor) -> Tensor:
    """The squared distance of pairs of heads; 0 for clients that do not mix theirs."""
    squares = torch.zeros(len(one), dtype=torch.float64)
    sets = [member.label_set for member in cohort.members]
    same = torch.tensor(
        [sets[i] == sets[j] for i, j in zip(one.tolist(), two.tolist(), strict=True)]
    )
    for value in heads_of(cohort.tensors).values():
        for some in torch.split(torch.arange(len(one)), PAIRS_AT_ONCE):
            gap = value[one[some]].double() - value[two[some]].double()
            squares[some] += gap.square().flatten(1).sum(1).cpu()
    return torch.where(same, squares, torch.zeros_like(squares))


def squared_deviations(
    cohort: Cohort, near: Mapping[str, Sequence[tuple[str, float]]]
) -> dict[str, float]:
    """Squared distance of each client from the mean of its neighbours; heads by label sets.

    From distances of pairs: |x - sum p_l x_l|^2 is sum p_l |x - x_l|^2 less the sum over pairs of
    neighbours of p_l p_m |x_l - x_m|^2, so that no mean is ever formed.
    """
    groups = {client: [client, *(other for other, _ in near[client])] for client in near}
    pairs = sorted({_pair(*two) for group in groups.values() for two in combinations(group, 2)})
    if not pairs:
        return dict.fromkeys(near, 0.0)
    one, two = (cohort.index([pair[side] for pair in pairs]) for side in (0, 1))
    bodies = dict(zip(pairs, squared_gaps(cohort, one, two).tolist(), strict=True))
    heads = dict(zip(pairs, squared_head_gaps(cohort, one, two).tolist(), strict=True))
    members = {member.id: member for member in cohort.members}
    found = {}
    for client, others in near.items():
        labels = members[client].label_set
        alike = [(other, p) for other, p in others if members[other].label_set == labels]
        shared = sum(p for _, p in alike)
        # A head's mean is over the clients of its label set, and counts as far as there are any.
        mean = [(other, p / shared) for other, p in alike]
        found[client] = _from_mean(client, others, bodies) + shared * _from_mean(
            client, mean, heads
        )
    return found


def _from_mean(
    client: str, others: Sequence[tuple[str, float]], gaps: Mapping[tuple[str, str], float]
) -> float:
    """The squared distance of one from the mean of some others, by that of all pairs."""
    away = sum(p * gaps[_pair(client, other)] for other, p in others)
    apart = sum(p * q * gaps[_pair(one, two)] for (one, p), (two, q) in combinations(others, 2))
    return max(0.0, away - apart)


def _pair(one: str, two: str) -> tuple[str, str]:
    return (one, two) if one < two else (two, one)
