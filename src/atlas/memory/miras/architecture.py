"""Architectures: the function whose weights are the memory.

A memory is a tuple of matrices [..., rows, columns]. The gradient of each with respect to one
token's loss is an outer product, left^T right, because every matrix meets a single row vector; so
n tokens need left [..., n, rows] and right [..., n, columns] and never n matrices.

- `matrix`: y = x M.
- `mlp`: y = gelu(x W1) W2, two layers without bias. The residual path and layer norm that Miras
  puts around its memory belong to the layer that uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import gelu

MemoryWeights = tuple[Tensor, ...]
Apply = Callable[[Tensor], Tensor]
Factors = tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True)
class Architecture:
    """A family of memories.

    Attributes:
        shapes: (d_k, d_v, hidden) -> rows and columns of every matrix.
        forward: (what each matrix does to rows, x [..., n, d_k]) -> y [..., n, d_v].
        factors: (weights, keys [..., n, d_k], output -> gradient of the loss with respect to it)
            -> (left, right) of every matrix.
    """

    shapes: Callable[[int, int, int], tuple[tuple[int, int], ...]]
    forward: Callable[[Sequence[Apply], Tensor], Tensor]
    factors: Callable[[MemoryWeights, Tensor, Apply], Factors]

    def apply(self, weights: MemoryWeights, x: Tensor) -> Tensor:
        """The memory's answer to x [..., n, d_k] with weights that all n share."""
        return self.forward([partial(_times, w) for w in weights], x)


def _times(weights: Tensor, rows: Tensor) -> Tensor:
    return rows @ weights


def matrix() -> Architecture:
    """One linear map."""

    def forward(layers: Sequence[Apply], x: Tensor) -> Tensor:
        return layers[0](x)

    def factors(weights: MemoryWeights, keys: Tensor, pull: Apply) -> Factors:
        return ((keys, pull(keys @ weights[0])),)

    return Architecture(lambda d_k, d_v, hidden: ((d_k, d_v),), forward, factors)


def mlp() -> Architecture:
    """Two layers; starts from small random weights, since zero is a saddle that stays zero."""

    def forward(layers: Sequence[Apply], x: Tensor) -> Tensor:
        return layers[1](gelu(layers[0](x)))

    def factors(weights: MemoryWeights, keys: Tensor, pull: Apply) -> Factors:
        before = keys @ weights[0]
        after = gelu(before)
        right = pull(after @ weights[1])
        return (keys, (right @ weights[1].mT) * gelu_slope(before)), (after, right)

    return Architecture(lambda d_k, d_v, hidden: ((d_k, hidden), (hidden, d_v)), forward, factors)


def gelu_slope(x: Tensor) -> Tensor:
    """The derivative of gelu: the normal distribution function plus x times its density."""
    density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    below = (1 + torch.erf(x / math.sqrt(2))) / 2
    return below + x * density


ARCHITECTURES: dict[str, Callable[[], Architecture]] = {"matrix": matrix, "mlp": mlp}
