"""The next token: shares of all tokens from logits, and one of them by a number between 0 and 1."""

from __future__ import annotations

import torch
from torch import Tensor


def next_shares(
    logits: Tensor, temperature: float, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """How often each token is to come next.

    Args:
        logits: [V]; minus infinity for a token that is never to come.
        temperature: Logits are divided by it; 0 is the likeliest token alone.
        top_k: Only so many of the likeliest.
        top_p: Only the likeliest that together have at least this share, after `top_k`.

    Returns:
        Shares that sum to one, [V], in float64.
    """
    wide = logits.to(torch.float64)
    if temperature == 0:
        return torch.zeros_like(wide).index_fill_(0, wide.argmax(), 1.0)
    # A stable order: of two equally likely tokens the first is kept, on every machine.
    ranked, order = (wide / temperature).softmax(-1).sort(descending=True, stable=True)
    if top_k is not None:
        ranked[top_k:] = 0.0
    if top_p is not None:
        before = ranked.cumsum(0) - ranked
        ranked[before >= top_p * ranked.sum()] = 0.0
    return torch.zeros_like(ranked).index_copy_(0, order, ranked / ranked.sum())


def pick(shares: Tensor, number: float) -> int:
    """The token at which the shares, added up in order, first exceed a number in [0, 1)."""
    ends = shares.cumsum(0)
    found = int((ends <= number * ends[-1]).sum())
    # Rounding may leave the sum at the number itself: then the last token that has a share.
    return min(found, int(shares.nonzero()[-1]))
