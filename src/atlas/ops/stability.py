"""What keeps a classifier learning once its training answers are right.

A model that has its training answers right can lower a softmax loss by scaling its logits up
alone. Float32 then runs out of digits: the sum of exponentials rounds to one, gradients to zero
(softmax collapse), and what might have been learned later is not. StableMax is a softmax that
does not saturate; PerpGrad takes the scaling direction out of the gradient. (Prieto et al. 2025,
"Grokking at the edge of numerical stability".)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum"]
ALONG = 1e-6
"""A gradient with less than this share of it across its weight has nothing but rounding there."""


def stablemax_log_probabilities(logits: Tensor) -> Tensor:
    """Logarithms of s(z) / sum of s(z), float64; s(z) is z + 1 from 0 on and 1 / (1 - z) below.

    Args:
        logits: [..., classes].
    """
    z = logits.double()
    # log1p on both sides: near zero s is near one. Clamping keeps the unused side finite.
    logs = torch.where(z >= 0, z.clamp_min(0).log1p(), -(-z.clamp_max(0)).log1p())
    return logs - logs.logsumexp(-1, keepdim=True)


def stablemax_cross_entropy(
    logits: Tensor, targets: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """Minus the log-probability of the targets under StableMax, float64.

    Args:
        logits: [N, classes].
        targets: [N] int64.
        reduction: Mean or sum over the N.
    """
    picked = stablemax_log_probabilities(logits).gather(-1, targets[..., None])
    return -picked.mean() if reduction == "mean" else -picked.sum()


def perpendicular(gradient: Tensor, weight: Tensor) -> Tensor:
    """The part of a gradient across its own weight, as long as the whole gradient was.

    Where nothing lies across (a gradient along its weight, a weight that is one number) it is
    zero; where the weight is zero there is no direction to remove.
    """
    # Sums over a whole tensor in float64: a float32 remainder would still point along the weight.
    g, w = gradient.double(), weight.detach().double()
    square = (w * w).sum()
    along = (w * g).sum() / square.clamp_min(torch.finfo(torch.float64).tiny)
    across = g - along * w
    size, left = g.norm(), across.norm()
    scale = torch.where(left > ALONG * size, size / left, 0.0)
    return (across * scale).to(gradient.dtype)


@torch.no_grad()
def make_perpendicular_(parameters: Iterable[Tensor]) -> None:
    """PerpGrad: `perpendicular` on the gradient of every tensor, each by itself, in place."""
    for value in parameters:
        if value.grad is not None:
            value.grad.copy_(perpendicular(value.grad, value))


@torch.no_grad()
def collapse_share(logits: Tensor) -> float:
    """Share of rows whose sum of exp(z - max) is exactly one: their softmax has no gradient left.

    Args:
        logits: [N, classes], in the precision that the loss is computed in.
    """
    sums = (logits - logits.amax(-1, keepdim=True)).exp().sum(-1)
    return float((sums == 1).double().mean())


@torch.no_grad()
def scaling_cosine(parameters: Iterable[Tensor]) -> float:
    """Cosine of the descent direction with the weights: one if a step only scales them up.

    Naive loss minimisation: a positive value that stays says that training lowers its loss by
    larger logits. Of gradients as they come from the loss, before PerpGrad, all tensors together.
    """
    product = squares = lengths = 0.0
    for value in parameters:
        if value.grad is None:
            continue
        w, g = value.double(), value.grad.double()
        product -= float((w * g).sum())
        squares += float((w * w).sum())
        lengths += float((g * g).sum())
    bottom = (squares * lengths) ** 0.5
    return product / bottom if bottom > 0 else 0.0
