"""Muon: momentum made orthogonal, for weights that are matrices (Jordan et al. 2024).

All directions of a step get the same size, which a gradient's few large singular values would
otherwise take for themselves. The step is sized so that its entries are as large on average as
those of an AdamW step (0.2 * sqrt(largest side), Liu et al. 2025), so that both take one learning
rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from atlas.ops.newton_schulz import newton_schulz

MOMENTUM = 0.95
SIZE = 0.2
"""Root mean square of the entries of an AdamW step, about."""


def muon_(  # noqa: PLR0913
    weight: Tensor,
    grad: Tensor,
    momentum: Tensor,
    *,
    rate: float,
    weight_decay: float = 0.0,
    beta: float = MOMENTUM,
) -> None:
    """One step in place, of the weight and of its momentum.

    m <- beta m + (1 - beta) g; the step is the orthogonal part of (1 - beta) g + beta m, that is
    of the momentum looked at one step ahead (Nesterov).

    Args:
        weight: [rows, columns].
        grad: Its gradient; it is not changed.
        momentum: Of the same shape, zero at first.
        rate: The learning rate.
        weight_decay: Decoupled decay, multiplied by the rate.
        beta: How much of the momentum stays.
    """
    momentum.lerp_(grad, 1 - beta)
    step = newton_schulz(grad.lerp(momentum, beta))
    weight.mul_(1 - rate * weight_decay)
    weight.add_(step, alpha=-rate * SIZE * max(weight.shape) ** 0.5)


class Muon(torch.optim.Optimizer):
    """`muon_` for parameters that are matrices; it keeps one tensor, `momentum`, of each."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        beta: float = MOMENTUM,
    ) -> None:
        """As other optimisers of torch.

        Raises:
            ValueError: A parameter is no matrix.
        """
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "beta": beta})
        for group in self.param_groups:
            for value in group["params"]:
                if value.ndim != 2:
                    raise ValueError(f"Muon is for matrices, not for shape {list(value.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of every matrix that has a gradient."""
        if closure is not None:
            raise ValueError("Muon takes no closure: compute the gradients first")
        for group in self.param_groups:
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                if not state:
                    state["momentum"] = torch.zeros_like(value)
                muon_(
                    value,
                    value.grad,
                    state["momentum"],
                    rate=group["lr"],
                    weight_decay=group["weight_decay"],
                    beta=group["beta"],
                )
