"""How a width is divided among heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Heads:
    """H heads of d channels each; together as wide as the tokens they read."""

    count: int
    width: int

    @property
    def total(self) -> int:
        """H d."""
        return self.count * self.width

    def projection(self) -> nn.Linear:
        """A linear map from tokens to all heads. No bias: padding of zero stays zero."""
        return nn.Linear(self.total, self.total, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """[B, ..., T, H d] -> [B, H, ..., T, d]."""
        return torch.unflatten(x, -1, (self.count, self.width)).movedim(-2, 1)

    def join(self, x: Tensor) -> Tensor:
        """[B, H, T, d] -> [B, T, H d]."""
        return x.transpose(1, 2).flatten(2)
