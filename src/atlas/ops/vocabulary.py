"""Losses of next tokens against a frozen vocabulary, without a second look at its logits.

The gradient of a cross-entropy is known once its logits are: probabilities, less one at the token
that came. It is taken through the frozen weights at once, a number per width instead of one per
word, so nothing as wide as the vocabulary is kept for the backward pass or written by it.

Letters in shapes: M places, D width, V words.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 8192
"""Words whose logits are one tensor."""


def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each place [M], in single precision or better.

    Args:
        hidden: What the vocabulary reads [M, D].
        weight: One row for each word [V, D]; takes no gradient.
        targets: The words that came [M].
    """
    if weight.requires_grad:
        raise ValueError("the vocabulary must be frozen: its gradient is not computed")
    found: Tensor = _TokenLosses.apply(hidden, weight, targets)  # type: ignore[no-untyped-call]
    return found


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:  # noqa: ANN401
        wide = torch.promote_types(hidden.dtype, torch.float32)
        words = torch.split(weight, CHUNK)
        logits = [(hidden @ some.T).to(wide) for some in words]
        total = torch.stack([part.logsumexp(1) for part in logits]).logsumexp(0)
        losses = total - _at(logits, targets)
        if ctx.needs_input_grad[0]:
            pulled = -weight[targets].to(wide)
            for part, some in zip(logits, words, strict=True):
                shares = part.sub_(total[:, None]).exp_()
                pulled += (shares.to(some.dtype) @ some).to(wide)
            ctx.save_for_backward(pulled)
            ctx.given = hidden.dtype
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        (pulled,) = ctx.saved_tensors
        return (grads[0][:, None] * pulled).to(ctx.given), None, None


def _at(logits: list[Tensor], targets: Tensor) -> Tensor:
    """The logit of every place's own word [M]."""
    found = logits[0].new_zeros(len(targets))
    for number, part in enumerate(logits):
        inside = targets // CHUNK == number
        found[inside] = part[inside, targets[inside] - number * CHUNK]
    return found
