"""AdamW, clipping and schedules for stacked clients: dimension 0 is always the client.

Nothing is shared between clients: norms, step counts, learning rates and moments are per client,
so that a stacked cohort trains as its members would apart.

`Columns` holds the tensors of a stack as columns of one, so that an update is a few operations for
all of them.

Letters in shapes: n rows, P numbers of a row in all tensors together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Shape a vector [n] so that it broadcasts over `like` [n, ...]."""
    return values.reshape(-1, *([1] * (like.dim() - 1))).to(like.dtype)


def client_norms(values: Iterable[Tensor]) -> Tensor:
    """The L2 norm of everything each client holds in `values`, [n]."""
    squares = [value.square().flatten(1).sum(1) for value in values]
    return torch.stack(squares).sum(0).sqrt()


def clip_factors(grads: Iterable[Tensor], limit: float) -> Tensor:
    """What each client's gradients are multiplied by so that their norm is at most `limit`."""
    return (limit / (client_norms(grads) + 1e-6)).clamp_max(1.0)


def adamw_(
    value: Tensor,
    grad: Tensor,
    moments: tuple[Tensor, Tensor],
    *,
    steps: Tensor,
    rates: Tensor,
    weight_decay: float,
) -> None:
    """One decoupled-decay Adam step in place; the gradient's room is used up on the way.

    Args:
        value: Parameters [n, P].
        grad: Their gradients.
        moments: First and second moments.
        steps: How many steps each client has made, this one included [n].
        rates: Learning rates, one a client [n, 1] or one each [n, P].
        weight_decay: Decoupled decay, multiplied by the rate.
    """
    first, second = moments
    first.lerp_(grad, 1 - BETA1)
    second.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
    count = steps.to(torch.float64)
    correct1 = per_client(1 - BETA1**count, value)
    correct2 = per_client(1 - BETA2**count, value)
    size = torch.div(second, correct2, out=grad).sqrt_().add_(EPSILON)
    update = torch.div(first, size, out=size).mul_(rates / correct1)
    value.mul_(1 - rates * weight_decay).sub_(update)


def adam_direction(first: Tensor, second: Tensor, steps: Tensor) -> Tensor:
    """Where moments [n, P] of so many steps [n] point: what a rate of one would take off."""
    count = steps.to(torch.float64)
    correct1 = per_client(1 - BETA1**count, first)
    correct2 = per_client(1 - BETA2**count, first)
    return first / correct1 / ((second / correct2).sqrt_().add_(EPSILON))


def gradient_weights(rates: NDArray[np.float64], made: int) -> NDArray[np.float64]:
    """What each step's gradient counts in the sum of Adam's updates [steps], second moments alike.

    Momentum lets a gradient count in all later steps; the correction for its start lets the first
    ones count most.

    Args:
        rates: The rate of each step.
        made: Steps that the moments held before the first of them.
    """
    counts = made + np.arange(1, len(rates) + 1)
    later = (1 - BETA1) * rates / (1 - BETA1**counts)
    found = np.zeros(len(rates))
    ahead = 0.0
    for step in reversed(range(len(rates))):
        ahead = later[step] + BETA1 * ahead
        found[step] = ahead
    return found


def constant(progress: float) -> float:
    """Full rate throughout."""
    del progress
    return 1.0


def linear(progress: float) -> float:
    """From one to zero in a straight line."""
    return max(0.0, 1.0 - progress)


def cosine(progress: float) -> float:
    """From one to zero along half a cosine."""
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


SCHEDULES = {"constant": constant, "linear": linear, "cosine": cosine}


def rate_at(schedule: str, progress: float, warmup: float) -> float:
    """The share of the full learning rate at `progress` in [0, 1] of the whole run."""
    if progress < warmup:
        return progress / warmup
    rest = (progress - warmup) / (1.0 - warmup) if warmup < 1.0 else 1.0
    return SCHEDULES[schedule](rest)


@dataclass(frozen=True)
class Columns:
    """Which columns are which tensor's.

    Attributes:
        shapes: Of a row of each tensor, in their order.
    """

    shapes: Mapping[str, torch.Size]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Columns:
        """The columns of tensors whose dimension 0 is the row."""
        return cls({name: value.shape[1:] for name, value in tensors.items()})

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A copy of the tensors side by side [n, P]."""
        return torch.cat([tensors[name].flatten(1) for name in self.shapes], dim=1)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors that [n, P] consists of; what is written to it is written to them."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), torch.split(flat, sizes, dim=1), strict=True)
        return {name: torch.unflatten(part, 1, shape) for (name, shape), part in parts}

    def each(self, value: Callable[[str], Tensor], like: Tensor) -> Tensor:
        """What belongs to a name, a number or one a row [n], in all its columns [n, P]."""
        found = torch.empty_like(like)
        for name, view in self.views(found).items():
            view.copy_(value(name).reshape(-1, *[1] * (view.dim() - 1)).expand_as(view))
        return found
