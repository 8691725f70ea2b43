"""The optimisers of a model, AdamW with or without Muon, and their state by name.

A checkpoint holds tensors by name, so that a resumed run goes on with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from atlas.memory.training.parallel import like, whole
from atlas.ops.muon import Muon

OptimiserName = Literal["adamw", "muon"]
Named = Iterable[tuple[str, nn.Parameter]]


class Optimisers:
    """AdamW for everything, or Muon for matrices and AdamW for the rest."""

    def __init__(  # noqa: PLR0913
        self,
        named: Named,
        kind: OptimiserName = "adamw",
        *,
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        """Before the first step.

        Args:
            named: Parameters by name; those with one dimension or none are not decayed.
            kind: muon: matrices by Muon; the rest by AdamW, at the same rate.
            lr: The learning rate.
            weight_decay: Of matrices.
            betas: Of AdamW.
            eps: Of AdamW.
        """
        self.named = list(named)
        # Norms and the biases of gates stay out: a bias pulled to zero makes a gate one half.
        larger = [value for _, value in self.named if value.ndim > 1]
        others = [value for _, value in self.named if value.ndim <= 1]
        by_muon = [value for value in larger if kind == "muon" and value.ndim == 2]
        decayed = [value for value in larger if not (kind == "muon" and value.ndim == 2)]
        groups = [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimisers: list[torch.optim.Optimizer] = []
        if filled := [group for group in groups if group["params"]]:
            self.optimisers.append(torch.optim.AdamW(filled, lr=lr, betas=betas, eps=eps))
        if by_muon:
            self.optimisers.append(Muon(by_muon, lr=lr, weight_decay=weight_decay))

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps from now on."""
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimiser in self.optimisers:
            optimiser.zero_grad()

    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for optimiser in self.optimisers:
            optimiser.step()

    def tensors(self) -> dict[str, Tensor]:
        """What is kept of each parameter, as `moment|parameter`."""
        return {
            f"{moment}|{name}": whole(kept)
            for name, value in self.named
            for optimiser in self.optimisers
            for moment, kept in optimiser.state.get(value, {}).items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Back to what `tensors` gave; other names are passed over."""
        homes = {
            value: optimiser
            for optimiser in self.optimisers
            for group in optimiser.param_groups
            for value in group["params"]
        }
        found: dict[str, dict[str, Tensor]] = {}
        for key, kept in tensors.items():
            moment, _, name = key.partition("|")
            found.setdefault(name, {})[moment] = kept
        for name, value in self.named:
            moments = {m: kept for m, kept in found.get(name, {}).items() if m in MOMENTS}
            if not moments:  # it had no gradient yet
                homes[value].state.pop(value, None)
                continue
            # Steps are counted on the CPU wherever the model is.
            homes[value].state[value] = {
                moment: kept.to("cpu", copy=True) if moment == "step" else like(kept, value)
                for moment, kept in moments.items()
            }


MOMENTS = ("step", "exp_avg", "exp_avg_sq", "momentum")
"""What the optimisers keep of a parameter."""
