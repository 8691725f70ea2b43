"""Attentional bias: which error of recall the memory learns from (Miras, arXiv 2504.13173).

Each piece maps the error e = M(k) - v to the gradient of its loss with respect to the memory's
output; the architecture carries it on to the weights. Losses are per token:

- `l2`: ||e||^2 / 2, gradient e.
- `lp`: sum |e|^p, gradient p Sign(e) |e|^(p-1), where Sign(x) is tanh(sharpness x) and |x| is
  sqrt(x^2 + 1e-6): both smooth, so that what trains the gates can differentiate them again.
- `huber`: ||e||^2 / 2 up to ||e|| = delta_t, delta_t (||e|| - delta_t / 2) beyond. The gradient is
  e, and beyond delta_t it is delta_t e / ||e||: the same direction, its length held at delta_t.
  Miras writes delta_t times the l1 gradient; the l1 of the norm, not of the entries, is the one
  that meets e without a jump.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Bias = Callable[[Tensor, Tensor | None], Tensor]
"""(error [..., d_v], delta [...] or None) -> gradient [..., d_v]."""

SMOOTHING = 1e-6
"""Added under the root of |x|."""


def l2() -> Bias:
    """Squared error."""

    def gradient(error: Tensor, delta: Tensor | None) -> Tensor:
        del delta
        return error

    return gradient


def lp(p: float = 3.0, sharpness: float = 10.0) -> Bias:
    """The p-th power of every entry's error.

    Args:
        p: At least one; three is Moneta's.
        sharpness: Of the tanh that stands for the sign.
    """
    if p < 1:
        raise ValueError(f"the power of an lp bias is at least 1, not {p:g}")

    def gradient(error: Tensor, delta: Tensor | None) -> Tensor:
        del delta
        size = (error.square() + SMOOTHING).sqrt()
        return p * torch.tanh(sharpness * error) * size ** (p - 1)

    return gradient


def huber() -> Bias:
    """Squared error whose gradient is no longer than delta_t, so that outliers cannot take over."""

    def gradient(error: Tensor, delta: Tensor | None) -> Tensor:
        if delta is None:
            raise ValueError("a huber bias needs delta, one threshold per token and head")
        length = torch.linalg.vector_norm(error, dim=-1)
        inside = length <= delta
        # A zero error is always inside; the one keeps its unused branch, and gradient, finite.
        shrink = torch.where(inside, 1.0, delta / torch.where(inside, 1.0, length))
        return error * shrink[..., None]

    return gradient


BIASES: dict[str, Callable[..., Bias]] = {"l2": l2, "lp": lp, "huber": huber}
