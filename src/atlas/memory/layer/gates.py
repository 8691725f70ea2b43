"""The gates of a memory: per token and head, each with a floor that is given, not learned.

Floors and who watches are how a layer reads, as against what it reads: nothing of it is learned or
carried on.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from atlas.memory.layer.observe import LayerView, floored_gate

BIASES = {"alpha": -4.0, "eta": 0.0, "theta": 1.0, "gamma": 1.0}
"""Where gates start, before the sigmoid: a memory that forgets little and writes much."""
GATE_SPREAD = 0.02


class Floors(NamedTuple):
    """The lowest value of each gate.

    Attributes:
        alpha: Of forgetting; above zero, everything fades.
        eta: Of momentum.
        theta: Of the step.
        gamma: Of the weights within an Omega window.
        mix: Of the memory's share in the layer's output.
    """

    alpha: float = 0.0
    eta: float = 0.0
    theta: float = 0.0
    gamma: float = 0.0
    mix: float = 0.0


NO_FLOORS = Floors()


class Gates(NamedTuple):
    """Values of the gates: [B, H, T], gamma [B, H, T, c] or None where the window is one token."""

    alpha: Tensor
    eta: Tensor
    theta: Tensor
    gamma: Tensor | None

    def named(self) -> dict[str, Tensor]:
        """Those there are, by name."""
        return {name: gate for name, gate in self._asdict().items() if gate is not None}


class Gate(nn.Module):
    """An affine map to the logits of one gate, with a start of its own.

    Its weights are its own and not those of a linear module: whoever draws the weights of linear
    modules anew leaves gates where they start.
    """

    def __init__(self, width: int, outputs: int, start: float) -> None:
        """A gate that starts near sigmoid(start)."""
        super().__init__()
        self.start_bias = start
        self.weight = nn.Parameter(torch.empty(outputs, width))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Back to the start."""
        nn.init.normal_(self.weight, std=GATE_SPREAD)
        nn.init.constant_(self.bias, self.start_bias)

    def forward(self, x: Tensor, floor: float) -> Tensor:
        """[B, T, D] -> [B, T, outputs], in float32 at least."""
        logits = linear(x, self.weight, self.bias)
        return floored_gate(logits.to(torch.promote_types(logits.dtype, torch.float32)), floor)


class MemoryGates(nn.Module):
    """Gates that read the layer's input."""

    def __init__(self, width: int, heads: int, window: int, momentum: float | None = None) -> None:
        """Gates for `heads` heads and a window of `window` tokens.

        Args:
            width: Of the input.
            heads: H.
            window: c of the rule; only above one does gamma exist.
            momentum: eta of every token; None: a gate like the others.
        """
        super().__init__()
        self.window, self.momentum = window, momentum
        self.alpha = Gate(width, heads, BIASES["alpha"])
        if momentum is None:
            self.eta = Gate(width, heads, BIASES["eta"])
        self.theta = Gate(width, heads, BIASES["theta"])
        if window > 1:
            self.gamma = Gate(width, heads * window, BIASES["gamma"])

    @torch.no_grad()
    def start_at(self, **starts: float) -> None:
        """Have gates start elsewhere than at BIASES, by name and before the sigmoid."""
        for name, start in starts.items():
            if isinstance(gate := getattr(self, name, None), Gate):  # momentum may be a constant
                gate.bias.fill_(start)

    def forward(self, x: Tensor, floors: Floors) -> Gates:
        """Values for T tokens [B, T, D]."""
        gamma = None
        if self.window > 1:
            weights = torch.unflatten(self.gamma(x, floors.gamma), -1, (-1, self.window))
            gamma = weights.transpose(1, 2)
        alpha = self.alpha(x, floors.alpha).transpose(1, 2)
        if self.momentum is None:
            eta = self.eta(x, floors.eta).transpose(1, 2)
        else:
            eta = torch.full_like(alpha, self.momentum)
        return Gates(
            alpha=alpha,
            eta=eta,
            theta=self.theta(x, floors.theta).transpose(1, 2),
            gamma=gamma,
        )


Watch = Callable[[LayerView], None]


class GateMode(Enum):
    """What a memory is read for.

    STORAGE: it writes and forgets as its gates say. RETRIEVAL: it answers and stays as it is; what
    its momentum would still have added is dropped, so that M is the same at every token.
    """

    STORAGE = "storage"
    RETRIEVAL = "retrieval"


class ReadMode(NamedTuple):
    """How to read.

    Attributes:
        floors: How far gates may close.
        watch: Is given what the memory did.
        gates: Whether the memory writes.
    """

    floors: Floors = NO_FLOORS
    watch: Watch | None = None
    gates: GateMode = GateMode.STORAGE


PLAIN_READ = ReadMode()
