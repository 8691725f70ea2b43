"""Clients of different backbones teach each other through cores (PQ-LoRA)."""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.federation.strategies.base import Strategy, View, register


def others(view: View) -> Tensor:
    """The mean of all others."""
    n = len(view.clients)
    if n == 1:
        return torch.eye(1, dtype=torch.float64)
    return (1 - torch.eye(n, dtype=torch.float64)) / (n - 1)


MOSAIC = register(
    Strategy(
        name="mosaic",
        relation=others,
        space="core",
        adapter="pq",
        heads="personal",
        deliver="global",
        about="cores of all backbones; what comes from others stands beside one's own",
    )
)
