"""Two retentions, one gate.

Miras (arXiv 2504.13173) writes a step as the memory that best trades what is to be learned against
being changed (local retention) and against being large (global retention):

    W_t = argmin over W of <W, gradient> + ||W - W_{t-1}||^2 / (2 l) + ||W||^2 / (2 g)

Setting the derivative to zero gives W_t = lambda W_{t-1} - l lambda gradient with
lambda = g / (g + l): a forgetting gate and a step, which every rule here already has.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Gate(NamedTuple):
    """Forgetting and step, as in `rule.Tokens`."""

    alpha: Tensor
    theta: Tensor


def one_gate(local: Tensor, everywhere: Tensor) -> Gate:
    """Make one gate of both retentions, elementwise.

    Args:
        local: l > 0; the smaller, the less a step changes.
        everywhere: g > 0; the smaller, the more is forgotten.
    """
    keep = everywhere / (everywhere + local)
    return Gate(local / (everywhere + local), local * keep)
