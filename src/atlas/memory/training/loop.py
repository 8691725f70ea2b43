"""Training of one model with a memory: a step, a test, and all that a checkpoint must hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from atlas.config.memory_train import MemoryTrainSettings
from atlas.memory.layer.gates import Floors
from atlas.memory.layer.observe import floor_at
from atlas.memory.training.losses import IGNORED, LossName, collapsed, token_loss
from atlas.memory.training.optimisers import Optimisers
from atlas.memory.training.parallel import OneProcess, Parallel, is_part, like, whole
from atlas.ops.optim import rate_at
from atlas.ops.stability import make_perpendicular_, scaling_cosine
from atlas.runs.ranks import Ranks


class Lines(NamedTuple):
    """Sequences [B, T], and what to say at each token or IGNORED: nothing is shifted.

    Attributes:
        answers: Where these are one process's rows of a batch, by how many answers their losses
            are divided: the whole batch's over the number of processes. None: by their own.
    """

    ids: Tensor
    targets: Tensor
    answers: float | None = None

    def to(self, device: torch.device) -> Lines:
        """The same on a device."""
        return Lines(self.ids.to(device), self.targets.to(device), self.answers)

    def part(self, ranks: Ranks) -> Lines:
        """This process's rows of a batch, which all of them have."""
        if not ranks.several:
            return self
        rows = ranks.rows(len(self.ids))
        answers = int((self.targets != IGNORED).sum()) / ranks.count
        return Lines(self.ids[rows], self.targets[rows], answers)

    def mean_loss(self, logits: Tensor, kind: LossName) -> Tensor:
        """Of the answers; of several processes' rows, one whose mean over them is the batch's."""
        if self.answers is None:
            return token_loss(logits, self.targets, kind)
        return token_loss(logits, self.targets, kind, "sum") / self.answers


class Read(NamedTuple):
    """What reading a step's work came to, its gradients being in the parameters.

    Attributes:
        loss: What was made smaller.
        measures: More about it, by name.
        memory: If asked for, what the memory did.
    """

    loss: float
    measures: dict[str, float]
    memory: dict[str, float] | None


class Step(NamedTuple):
    """What a step did.

    Attributes:
        loss: Before it.
        rate: Learning rate.
        norm: Of the gradient, before clipping.
        memory: If asked for, what the memory did, by layer and measure.
        measures: More about the loss and, if asked for, about stability.
    """

    loss: float
    rate: float
    norm: float
    memory: dict[str, float] | None
    measures: dict[str, float]


class Score(NamedTuple):
    """Mean loss of the answers, share of right ones, and the memory after the last sequences."""

    loss: float
    accuracy: float
    memory: dict[str, float]


class Diverged(RuntimeError):
    """A loss or gradient that is not a finite number: nothing was changed by that step."""


class Objective(Protocol):
    """What a step's work is, and which gradients come of it."""

    def backward(self, model: nn.Module, work: Any, floors: Floors, watched: bool) -> Read:  # noqa: ANN401
        """Read the work and add its gradients to those of the parameters."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What it carries from step to step."""
        ...

    def load(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Back to what `tensors` gave."""
        ...


class NextToken:
    """Sequences that start from an empty memory, and the loss of what they are asked for."""

    def __init__(self, loss: LossName = "softmax") -> None:
        """With a loss by name."""
        self.loss = loss

    def backward(self, model: nn.Module, work: Lines, floors: Floors, watched: bool) -> Read:
        """One pass."""
        out = model(input_ids=work.ids, use_cache=False, floors=floors, output_memory=watched)
        loss = work.mean_loss(out.logits, self.loss)
        loss.backward()  # type: ignore[no-untyped-call]
        found = {"softmax_collapse": collapsed(out.logits, work.targets)} if watched else {}
        return Read(float(loss.detach()), found, out.memory)

    def tensors(self) -> dict[str, Tensor]:
        """Nothing is carried."""
        return {}

    def load(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """There is nothing to load."""


class MemoryTrainer:
    """A model and its optimisers; what it does at a step depends on the step's number alone.

    Attributes:
        model: Gives `logits` and `memory` for ids, as `AtlasForCausalLM` does.
        settings: How it is trained.
        objective: On what.
        parallel: How several processes train it together.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: MemoryTrainSettings,
        objective: Objective | None = None,
        parallel: Parallel | None = None,
    ) -> None:
        """A learner before its first step.

        Args:
            model: The model.
            settings: How it is trained.
            objective: On what; None: on what comes next.
            parallel: How several processes train it together; None: there is one.
        """
        self.model, self.settings = model, settings
        self.parallel = OneProcess() if parallel is None else parallel
        self.objective = NextToken(settings.loss) if objective is None else objective
        self.optimisers = Optimisers(
            model.named_parameters(),
            settings.optimiser,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
        )

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(value.numel() for value in self.model.parameters())

    def floors(self, done: int) -> Floors:
        """How far gates may close once `done` steps are made."""
        own = self.settings.floor
        return Floors(mix=floor_at(done, self.settings.steps, own.points, own.span, own.shape))

    def step(self, number: int, work: Any, *, watched: bool = False) -> Step:  # noqa: ANN401
        """Step `number`, from 0.

        Raises:
            Diverged: The loss or its gradient is not finite.
        """
        own = self.settings
        # The middle of the step: a whole step more or less would make the first or last one idle.
        rate = own.lr * rate_at(own.schedule, (number + 0.5) / own.steps, own.warmup)
        self.optimisers.set_rate(rate)
        self.optimisers.zero_grad()
        read = self._told(self.objective.backward(self.model, work, self.floors(number), watched))
        self.parallel.finish_gradients()
        norm, found = self._finish_gradients(watched)
        for what, value in (("loss", read.loss), ("gradient norm", norm)):
            if not math.isfinite(value):
                raise Diverged(f"the {what} is {value} at step {number + 1}")
        self.optimisers.step()
        return Step(read.loss, rate, norm, read.memory, read.measures | found)

    def _told(self, read: Read) -> Read:
        """What all processes read together, so that all of them go on or stop alike."""
        loss, *measures = self.parallel.ranks.means([read.loss, *read.measures.values()])
        return Read(loss, dict(zip(read.measures, measures, strict=True)), read.memory)

    def _finish_gradients(self, watched: bool) -> tuple[float, dict[str, float]]:
        """All that is done to whole gradients: here they are complete and not yet used."""
        parameters = list(self.model.parameters())
        # A part of each weight cannot tell the angle to the whole.
        looked = watched and not is_part(parameters[0])
        found = {"scaling_cosine": scaling_cosine(parameters)} if looked else {}
        if self.settings.gradient == "perpendicular":
            make_perpendicular_(value for value in parameters if value.ndim > 1)
        limit = torch.inf if self.settings.clip is None else self.settings.clip
        return float(whole(nn.utils.clip_grad_norm_(parameters, limit))), found

    @torch.no_grad()
    def score(self, lines: Lines, done: int, rows: int | None = None) -> Score:
        """How well sequences it was not trained on are answered after `done` steps.

        Args:
            lines: The sequences.
            done: Steps made.
            rows: Sequences that are read at a time; None: as many as in training.
        """
        loss, right, floors = 0.0, 0, self.floors(done)
        memory: dict[str, float] = {}
        for ids, targets in _pieces(lines, rows or self.settings.batch):
            out = self.model(input_ids=ids, use_cache=False, floors=floors, output_memory=True)
            loss += float(token_loss(out.logits, targets, reduction="sum"))
            right += int((out.logits.argmax(-1) == targets).sum())
            memory = out.memory or {}
        answers = int((lines.targets != IGNORED).sum())
        return Score(loss / answers, right / answers, memory)

    def tensors(self) -> dict[str, Tensor]:
        """Weights, moments and what the objective carries, by name; a tied weight is there once."""
        found = {f"weight|{name}": whole(value.detach()) for name, value in self._named()}
        carried = {f"carried|{name}": value for name, value in self.objective.tensors().items()}
        return found | self.optimisers.tensors() | carried

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
                value.copy_(like(saved, value))
            if f"step|{name}" in tensors:  # its moments go together
                _ = [tensors[f"{moment}|{name}"] for moment in ("exp_avg", "exp_avg_sq")]
        self.optimisers.load(tensors)
        start = "carried|"
        carried = {n.removeprefix(start): tensors[n] for n in tensors if n.startswith(start)}
        self.objective.load(self.model, carried)

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.model.named_parameters())


def _pieces(lines: Lines, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(lines.ids), count):
        yield lines.ids[start : start + count], lines.targets[start : start + count]
