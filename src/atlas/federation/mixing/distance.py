"""How far clients of a cohort are apart, in the space that is mixed; nothing dense is formed."""

from __future__ import annotations

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
