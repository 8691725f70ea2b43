"""The loss of tokens that have a target, and what it says of the numbers it is made from."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from atlas.ops.stability import Reduction, collapse_share, stablemax_cross_entropy

IGNORED = -100
"""The target of a token that carries no loss."""
LossName = Literal["softmax", "stablemax"]


def token_loss(
    logits: Tensor, targets: Tensor, kind: LossName = "softmax", reduction: Reduction = "mean"
) -> Tensor:
    """Of the tokens that have a target; the others' logits take no part.

    Args:
        logits: [B, T, V].
        targets: [B, T], IGNORED where there is none.
        kind: stablemax: in float64, and it does not saturate.
        reduction: Over the tokens that have one.
    """
    asked = targets != IGNORED
    if kind == "stablemax":
        return stablemax_cross_entropy(logits[asked], targets[asked], reduction)
    full = torch.promote_types(logits.dtype, torch.float32)
    return cross_entropy(logits[asked].to(full), targets[asked], reduction=reduction)


def collapsed(logits: Tensor, targets: Tensor) -> float:
    """Share of the asked tokens whose softmax has no gradient left."""
    asked = logits.detach()[targets != IGNORED]
    return collapse_share(asked.to(torch.promote_types(asked.dtype, torch.float32)))
