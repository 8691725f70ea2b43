"""Depthwise causal convolution: every channel sees its own last few values."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CausalConvolution(nn.Module):
    """y_t = sum over i of weight[i] * x_{t - width + 1 + i}, channel by channel."""

    def __init__(self, channels: int, width: int) -> None:
        """A convolution over the last `width` tokens."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights that keep the size of independent inputs, up to a constant."""
        bound = len(self.weight) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def start(self, batch: int) -> Tensor:
        """The tail before the first token: nothing came before, [B, width - 1, channels]."""
        return self.weight.new_zeros(batch, len(self.weight) - 1, self.weight.shape[1])

    def forward(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve T tokens.

        Args:
            x: [B, T, channels].
            tail: The inputs before them, [B, width - 1, channels].

        Returns:
            [B, T, channels], and the tail after the last token.
        """
        length, rows = x.shape[1], torch.cat([tail.to(x.dtype), x], 1)
        # Few sums of whole rows: a library convolution of one channel each is slower.
        shifted = (rows[:, i : i + length] * weight for i, weight in enumerate(self.weight))
        total = torch.zeros_like(x)
        for part in shifted:
            total = total + part
        # A copy: a view would keep every row of the sequence alive.
        return total, rows[:, length:].clone()
