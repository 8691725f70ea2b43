"""How far adapters are from an anchor, as a cost that pulls them back to it.

A layer changes by scale * B @ A, and (B G^-1)(G A) is the same change, so the distance between
factors says nothing; adapters are compared by their products, heads by their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atlas.ops.lowrank.factors import squared_norms


def pull(
    tensors: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor],
    scales: Sequence[Tensor],
    modules: Sequence[str],
) -> Tensor:
    """Half the squared distance of every row of a stack to its anchor [n]; differentiable.

    Args:
        tensors: `lora_a/<module>` [n, R, d_in], `lora_b/<module>` [n, d_out, R] and `head/...`
            [n, ...]; padded slots are zero and their gradients too.
        anchor: Tensors of the same names and shapes.
        scales: What turns B @ A into a layer's change, one vector [n] per module.
        modules: Names of the adapted modules, in the order of `scales`.
    """
    squares = [
        (tensors[name] - anchor[name]).square().flatten(1).sum(1)
        for name in tensors
        if name.startswith("head/")
    ]
    for module, scale in zip(modules, scales, strict=True):
        a, b = f"lora_a/{module}", f"lora_b/{module}"
        gap = product_gap((tensors[a], tensors[b]), (anchor[a], anchor[b]))
        squares.append(scale.to(gap.dtype).square() * gap)
    return 0.5 * torch.stack(squares).sum(0)


def product_gap(here: tuple[Tensor, Tensor], there: tuple[Tensor, Tensor]) -> Tensor:
    """The squared norm of B A - B0 A0 for pairs (A, B) and (A0, B0) [n]; nothing dense is formed.

    The difference is written as (B - B0) A + B0 (A - A0), one low-rank product. At the anchor its
    squared norm and the gradient are exactly zero, and near it nothing large cancels; with the
    square of B A - B0 A0 multiplied out, neither would hold.
    """
    (a, b), (a0, b0) = here, there
    left = torch.cat([b - b0, b0], dim=2)
    right = torch.cat([a, a - a0], dim=1)
    return squared_norms(right, left)
