"""One optimiser step of some rows of a stack, whole or split between client and server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from atlas.config.models import TrainSettings
from atlas.federation.batches import Batch
from atlas.federation.forward import Model, Stack, run
from atlas.federation.split import Gradients, Wire, split_gradients
from atlas.federation.store import ExampleStore, Rows
from atlas.ops.anchor import pull
from atlas.ops.optim import adamw_update, clip_factors, per_client

Moments = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Anchor:
    """What the rows of a stack are pulled to; see `ops.anchor.pull`.

    Attributes:
        tensors: As in `Stack`; a row's anchor is in the same place.
        strength: Factor on each row's pull [n]; zero for rows that are not pulled.
    """

    tensors: Mapping[str, Tensor]
    strength: Tensor

    def rows(self, index: Tensor) -> Anchor:
        """The anchor of some rows only."""
        there = {name: value.index_select(0, index) for name, value in self.tensors.items()}
        return Anchor(there, self.strength.index_select(0, index))

    def cost(self, stack: Stack, index: Tensor, modules: Sequence[str]) -> Tensor:
        """What the pull adds to the objectives of `stack`, the rows in `index` [n]."""
        there = self.rows(index)
        found = pull(stack.tensors, there.tensors, stack.scales, modules)
        return there.strength.to(found.dtype) * found


@dataclass(frozen=True)
class Turn:
    """Which rows step together: their examples, their rates, and where their blocks are split.

    Attributes:
        rows: Places in the stack.
        picks: The batch of each.
        rates: The learning rate of each.
        point: Blocks on the client's side; None for an undivided step.
    """

    rows: list[int]
    picks: list[Rows]
    rates: list[float]
    point: int | None = None


@dataclass
class State:
    """The moving parts of a fit, and what pulls at them.

    Attributes:
        stack: Adapters; its tensors are replaced step by step.
        moments: First and second moments by tensor.
        made: Steps each row has made [n].
        anchor: What rows are pulled to.
        wire: Carries and counts what a split step sends.
    """

    stack: Stack
    moments: Moments
    made: Tensor
    anchor: Anchor | None
    wire: Wire = field(default_factory=Wire)
    _own: set[str] = field(default_factory=set)

    def step(self, store: ExampleStore, turn: Turn, settings: TrainSettings) -> Tensor:
        """One AdamW step; returns the losses of the rows that made it."""
        device = self.stack.labels.device
        index = torch.tensor(turn.rows, device=device)
        # Where every row takes part there is nothing to pick out, and no copy to hold.
        whole = turn.rows == list(range(len(self.stack.labels)))
        rows = self.stack if whole else self.stack.rows(index)
        leaves = {name: value.detach().requires_grad_() for name, value in rows.tensors.items()}
        moving = replace(rows, tensors=leaves)
        batch = store.batch(turn.picks)
        losses, grads = self._gradients(store.model, moving, batch, index, turn)
        del batch, moving, leaves
        if rows.still is not None:
            grads = {k: grad * per_client(rows.moving(k), grad) for k, grad in grads.items()}
        if settings.clip is not None:
            factors = clip_factors(grads.values(), settings.clip)
            for name, grad in list(grads.items()):
                grads[name] = grad * per_client(factors, grad)
            del grad
        self.made[index] += 1
        lr = torch.tensor(turn.rates, dtype=torch.float64, device=device)
        head_factor = (settings.head_lr or settings.lr) / settings.lr
        for name in list(grads):
            first, second = self.moments[name]
            given = (first, second) if whole else (first[index], second[index])
            value, moments = adamw_update(
                rows.tensors[name],
                grads.pop(name),
                given,
                steps=self.made[index],
                lr=(lr * head_factor if name.startswith("head/") else lr) * rows.moving(name),
                weight_decay=settings.weight_decay,
            )
            self._write(name, value, moments, None if whole else index)
        return losses.detach()

    def _gradients(
        self, model: Model, moving: Stack, batch: Batch, index: Tensor, turn: Turn
    ) -> tuple[Tensor, Gradients]:
        """Losses of the rows, and gradients of losses and pull together."""
        names, values = list(moving.tensors), list(moving.tensors.values())
        if turn.point is None:
            losses = objective = run(model, moving, batch).client_losses()
            if self.anchor is not None:
                objective = losses + self.anchor.cost(moving, index, model.layout.modules)
            found = torch.autograd.grad(objective.sum(), values)
            return losses, dict(zip(names, found, strict=True))
        outcome, grads = split_gradients(model, moving, batch, turn.point, turn.rows, self.wire)
        if self.anchor is not None:
            # Each side knows the adapters it trains, so the pull needs no message.
            pulled = self.anchor.cost(moving, index, model.layout.modules)
            more = torch.autograd.grad(pulled.sum(), values, materialize_grads=True)
            grads = {n: grads[n] + extra for n, extra in zip(names, more, strict=True)}
        return outcome.client_losses(), grads

    def _write(
        self, name: str, value: Tensor, moments: tuple[Tensor, Tensor], index: Tensor | None
    ) -> None:
        if index is None:
            self.stack.tensors[name], self.moments[name] = value, moments
            self._own.add(name)
            return
        if name not in self._own:
            # What was given may be somebody's still; only a copy can be written into.
            first, second = self.moments[name]
            self.stack.tensors[name] = self.stack.tensors[name].clone()
            self.moments[name] = (first.clone(), second.clone())
            self._own.add(name)
        self.stack.tensors[name].index_copy_(0, index, value)
        for kept, new in zip(self.moments[name], moments, strict=True):
            kept.index_copy_(0, index, new)


def begin(stack: Stack, carried: tuple[Moments, Tensor] | None, anchor: Anchor | None) -> State:
    """The state before the first step; with `carried`, moments and counts of earlier rounds."""
    moments, made = carried or (fresh_moments(stack), torch.zeros_like(stack.labels))
    return State(replace(stack, tensors=dict(stack.tensors)), dict(moments), made.clone(), anchor)


def fresh_moments(stack: Stack) -> Moments:
    """Zero moments for every tensor."""
    return {k: (torch.zeros_like(v), torch.zeros_like(v)) for k, v in stack.tensors.items()}
