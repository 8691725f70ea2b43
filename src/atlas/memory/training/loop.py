"""Training of one model with a memory: a step, a test, and all that a checkpoint must hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atlas.config.memory import MemoryTrainSettings
from atlas.memory.layer.gates import Floors
from atlas.memory.layer.observe import floor_at
from atlas.ops.optim import rate_at

IGNORED = -100
"""The target of a token that carries no loss."""
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What the optimiser keeps of a parameter."""


class Lines(NamedTuple):
    """Sequences [B, T], and what to say at each token or IGNORED: nothing is shifted."""

    ids: Tensor
    targets: Tensor

    def to(self, device: torch.device) -> Lines:
        """The same on a device."""
        return Lines(self.ids.to(device), self.targets.to(device))


class Step(NamedTuple):
    """What a step did: loss, learning rate, gradient norm and, if asked, what the memory did."""

    loss: float
    rate: float
    norm: float
    memory: dict[str, float] | None


class Score(NamedTuple):
    """Mean loss of the answers, share of right ones, and the memory after the last sequences."""

    loss: float
    accuracy: float
    memory: dict[str, float]


class MemoryTrainer:
    """A model and its optimiser; what it does at a step depends on the step's number alone.

    Attributes:
        model: Gives `logits` and `memory` for ids, as `AtlasForCausalLM` does.
        settings: How it is trained.
    """

    def __init__(self, model: nn.Module, settings: MemoryTrainSettings) -> None:
        """A learner before its first step."""
        self.model, self.settings = model, settings
        named = list(model.named_parameters())
        # Norms and the biases of gates stay out: a bias pulled to zero makes a gate one half.
        decayed = [value for _, value in named if value.ndim > 1]
        others = [value for _, value in named if value.ndim <= 1]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=settings.lr,
        )

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(value.numel() for value in self.model.parameters())

    def floors(self, done: int) -> Floors:
        """How far gates may close once `done` steps are made."""
        return Floors(mix=floor_at(done / self.settings.steps, tuple(self.settings.mix_floor)))

    def step(self, number: int, lines: Lines, *, watched: bool = False) -> Step:
        """Step `number`, from 0, on some sequences."""
        own = self.settings
        # The middle of the step: a whole step more or less would make the first or last one idle.
        rate = own.lr * rate_at(own.schedule, (number + 0.5) / own.steps, own.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        out = self.model(
            input_ids=lines.ids,
            use_cache=False,
            floors=self.floors(number),
            output_memory=watched,
        )
        loss = _loss(out.logits, lines.targets, "mean")
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        limit = torch.inf if own.clip is None else own.clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimiser.step()
        return Step(float(loss.detach()), rate, float(norm), out.memory)

    @torch.no_grad()
    def score(self, lines: Lines, done: int) -> Score:
        """How well sequences it was not trained on are answered after `done` steps."""
        loss, right, floors = 0.0, 0, self.floors(done)
        memory: dict[str, float] = {}
        for ids, targets in _pieces(lines, self.settings.batch):
            out = self.model(input_ids=ids, use_cache=False, floors=floors, output_memory=True)
            loss += float(_loss(out.logits, targets, "sum"))
            right += int((out.logits.argmax(-1) == targets).sum())
            memory = out.memory or {}
        answers = int((lines.targets != IGNORED).sum())
        return Score(loss / answers, right / answers, memory)

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments by name; a tied weight is there once."""
        found = {f"weight|{name}": value.detach() for name, value in self._named()}
        for name, value in self._named():
            for moment, kept in self.optimiser.state.get(value, {}).items():
                found[f"{moment}|{name}"] = kept
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Back to what `tensors` gave.

        Raises:
            KeyError: Something is missing.
            ValueError: Something has another shape.
        """
        for name, value in self._named():
            saved = tensors[f"weight|{name}"]
            if saved.shape != value.shape:
                raise ValueError(f"{name} has shape {list(saved.shape)}, not {list(value.shape)}")
            with torch.no_grad():
                value.copy_(saved)
            if f"step|{name}" not in tensors:  # it had no gradient yet
                continue
            # The optimiser counts steps on the CPU wherever the model is.
            self.optimiser.state[value] = {
                moment: tensors[f"{moment}|{name}"].to(
                    "cpu" if moment == "step" else value.device, copy=True
                )
                for moment in MOMENTS
            }

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.model.named_parameters())


def _loss(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    """Of the tokens that have a target; the others' logits take no part."""
    asked = targets != IGNORED
    full = torch.promote_types(logits.dtype, torch.float32)
    return cross_entropy(logits[asked].to(full), targets[asked], reduction=reduction)


def _pieces(lines: Lines, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(lines.ids), count):
        yield lines.ids[start : start + count], lines.targets[start : start + count]
