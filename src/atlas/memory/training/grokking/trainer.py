"""Training of one small model on modular arithmetic: a step, and all a checkpoint must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atlas.config.grokking import GrokkingTrainSettings
from atlas.memory.training.grokking.equations import Equations
from atlas.memory.training.grokking.models import ArithmeticModel
from atlas.memory.training.optimisers import Optimisers
from atlas.ops.stability import make_perpendicular_, scaling_cosine, stablemax_cross_entropy
from atlas.runs.seeds import generator

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": cross_entropy,
    "stablemax": stablemax_cross_entropy,
}


class ArithmeticStep(NamedTuple):
    """What a step did: loss, gradient norm, and how far it only scales logits up (a cosine).

    The last two are of the gradient as it comes from the loss, and are found where asked for.
    """

    loss: float
    gradient_norm: float | None
    scaling_cosine: float | None


class ArithmeticTrainer:
    """A model and its optimisers; what it does at a step depends on the step's number alone.

    Attributes:
        model: What is trained.
        settings: How.
        learned: The equations it learns from.
        seed: Of the run; batches follow from it.
    """

    def __init__(
        self, model: ArithmeticModel, settings: GrokkingTrainSettings, learned: Equations, seed: int
    ) -> None:
        """Before the first step."""
        self.model, self.settings, self.learned, self.seed = model, settings, learned, seed
        self.optimisers = Optimisers(
            model.named_parameters(),
            settings.optimiser,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            betas=settings.betas,
            eps=settings.eps,
        )

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(value.numel() for value in self.model.parameters())

    def step(self, number: int, *, watched: bool = False) -> ArithmeticStep:
        """Step `number`, from 0."""
        batch = self._batch(number)
        logits = self.model(batch.operation, batch.a, batch.b)
        loss = LOSSES[self.settings.loss](logits, batch.answer)
        self.optimisers.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = cosine = None
        if watched:
            norm = float(nn.utils.get_total_norm(_gradients(self.model)))
            cosine = scaling_cosine(self.model.parameters())
        if self.settings.gradient == "perpendicular":
            make_perpendicular_(self.model.parameters())
        self.optimisers.step()
        return ArithmeticStep(float(loss.detach()), norm, cosine)

    def _batch(self, number: int) -> Equations:
        """All equations, or some of an order that is drawn anew whenever all were seen."""
        size, count = self.settings.batch, len(self.learned)
        if size is None or size >= count:
            return self.learned
        turn, place = divmod(number, count // size)
        order = generator(self.seed, "arithmetic", "batches", turn).permutation(count)
        rows = torch.from_numpy(order[place * size : (place + 1) * size].astype(np.int64))
        return self.learned.pick(rows.to(self.learned.answer.device))

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments by name."""
        weights = {f"weight|{name}": v.detach() for name, v in self.model.named_parameters()}
        return weights | self.optimisers.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Back to what `tensors` gave.

        Raises:
            KeyError: Something is missing.
            ValueError: Something has another shape.
        """
        for name, value in self.model.named_parameters():
            saved = tensors[f"weight|{name}"]
            if saved.shape != value.shape:
                raise ValueError(f"{name} has shape {list(saved.shape)}, not {list(value.shape)}")
            with torch.no_grad():
                value.copy_(saved)
        self.optimisers.load(tensors)


def _gradients(model: nn.Module) -> list[Tensor]:
    return [value.grad for value in model.parameters() if value.grad is not None]
