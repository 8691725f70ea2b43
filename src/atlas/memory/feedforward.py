"""The part of a block that treats every token alike: plain, or with levels that learn."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from atlas.memory.layer import continuum
from atlas.memory.layer.continuum import Level, LevelState

Levels = tuple[LevelState, ...] | None


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); it carries nothing from token to token."""

    def __init__(self, width: int, hidden: int) -> None:
        """Without biases."""
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def start(self, batch: int) -> Levels:
        """Nothing."""
        del batch
        return None

    def forward(self, x: Tensor, state: Levels) -> tuple[Tensor, Levels]:
        """[B, T, D] -> [B, T, D]."""
        del state
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x)), None


class ContinuumLevel(nn.Module):
    """What training learns of one level of `continuum`."""

    def __init__(self, width: int, hidden: int) -> None:
        """A perceptron of `hidden` units that learns while it reads."""
        super().__init__()
        self.up = nn.Parameter(torch.empty(width, hidden))
        self.down = nn.Parameter(torch.empty(hidden, width))
        self.value = nn.Parameter(torch.empty(width, width))
        self.gate = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ordinary random weights; steps start half open."""
        for matrix in (self.up, self.down, self.value):
            nn.init.normal_(matrix, std=1 / math.sqrt(matrix.shape[0]))
        nn.init.zeros_(self.gate)
        nn.init.zeros_(self.bias)

    def level(self) -> Level:
        """As `continuum` takes it."""
        return Level(self.up, self.down, self.value, self.gate, self.bias)


class ContinuumFeedForward(nn.Module):
    """A chain of levels, the first renewed every `base` tokens, the next every `base` squared."""

    def __init__(self, width: int, hidden: int, base: int, levels: int) -> None:
        """Each level has hidden / levels units, so that all together are as large as one."""
        super().__init__()
        self.periods = continuum.periods_of(base, levels)
        self.levels = nn.ModuleList(ContinuumLevel(width, hidden // levels) for _ in self.periods)

    def start(self, batch: int) -> Levels:
        """Every level as training left it."""
        return continuum.fresh_state(self._levels(), batch)

    def forward(self, x: Tensor, state: Levels) -> tuple[Tensor, Levels]:
        """[B, T, D] -> [B, T, D], and the levels after the last token."""
        assert state is not None
        return continuum.continuum(self._levels(), self.periods, x, state)

    def _levels(self) -> list[Level]:
        return [own.level() for own in self.levels if isinstance(own, ContinuumLevel)]
