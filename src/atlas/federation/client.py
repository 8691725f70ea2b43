"""Local training: the one loop every strategy uses, for one client or a whole cohort."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from atlas.config.models import TrainSettings
from atlas.federation.early_stop import EarlyStop
from atlas.federation.forward import Stack, run
from atlas.federation.store import ExampleStore, Rows
from atlas.ops.anchor import pull
from atlas.ops.optim import adamw_update, clip_factors, per_client, rate_at
from atlas.runs.seeds import generator

Moments = dict[str, tuple[Tensor, Tensor]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Lesson:
    """What one row of a stack trains on: whose randomness, and which examples."""

    client: str
    train: Rows
    validation: Rows


@dataclass(frozen=True)
class Clock:
    """When in the run this round is; addresses randomness and the learning rate."""

    seed: int
    round: int
    rounds: int


@dataclass(frozen=True)
class Anchor:
    """What the rows of a stack are pulled to; see `ops.anchor.pull`.

    Attributes:
        tensors: As in `Stack`; a row's anchor is in the same place.
        strength: Factor on each row's pull [n]; zero for rows that are not pulled.
    """

    tensors: Mapping[str, Tensor]
    strength: Tensor

    def cost(self, stack: Stack, index: Tensor, modules: Sequence[str]) -> Tensor:
        """What the pull adds to the objectives of `stack`, the rows in `index` [n]."""
        there = {name: value.index_select(0, index) for name, value in self.tensors.items()}
        found = pull(stack.tensors, there, stack.scales, modules)
        return self.strength.index_select(0, index).to(found.dtype) * found


@dataclass(frozen=True)
class Fitted:
    """A trained stack: its tensors, mean training loss, steps made and optimiser moments."""

    stack: Stack
    losses: Tensor
    steps: Tensor
    moments: Moments
    made: Tensor


def plan_batches(lesson: Lesson, settings: TrainSettings, clock: Clock) -> list[list[Rows]]:
    """A client's batches of one round, epoch by epoch; addressed by client, round and epoch."""
    per_epoch = -(-len(lesson.train) // settings.batch)
    epochs = settings.epochs or -(-(settings.steps or 0) // per_epoch)
    plan = []
    left = settings.steps or epochs * per_epoch
    for epoch in range(epochs):
        draw = generator(clock.seed, "batches", clock.round, lesson.client, epoch)
        order = lesson.train[draw.permutation(len(lesson.train))]
        batches = [order[i : i + settings.batch] for i in range(0, len(order), settings.batch)]
        plan.append(batches[:left])
        left -= len(plan[-1])
    return plan


def fresh_moments(stack: Stack) -> Moments:
    """Zero moments for every tensor."""
    return {k: (torch.zeros_like(v), torch.zeros_like(v)) for k, v in stack.tensors.items()}


def fit(  # noqa: PLR0913
    store: ExampleStore,
    stack: Stack,
    lessons: Sequence[Lesson],
    settings: TrainSettings,
    clock: Clock,
    *,
    carried: tuple[Moments, Tensor] | None = None,
    anchor: Anchor | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Train every row of a stack on its own lesson.

    Rows are independent: own batches, step counts, clipping, rate and early stop. A row that has
    finished is no longer part of the forward pass and is not touched.

    Args:
        store: Where the lessons' examples are.
        stack: Adapters before training; not changed.
        lessons: One per row.
        settings: Optimiser and length of training.
        clock: Where in the run this is.
        carried: Moments and step counts of earlier rounds, if they are kept.
        anchor: What rows are pulled to; losses are told without the pull.
        progress: Called with (steps made, steps planned) of the longest row.
    """
    plans = [plan_batches(lesson, settings, clock) for lesson in lessons]
    batches = [[batch for epoch in plan for batch in epoch] for plan in plans]
    ends = [set(np.cumsum([len(epoch) for epoch in plan]).tolist()) for plan in plans]
    device = stack.labels.device
    state = _State(
        replace(stack, tensors=dict(stack.tensors)),
        dict(carried[0]) if carried else fresh_moments(stack),
        carried[1].clone() if carried else torch.zeros(len(lessons), dtype=torch.long).to(device),
        anchor,
    )
    watch = EarlyStop(settings.early_stop.patience, stack) if settings.early_stop else None
    totals = torch.zeros(len(lessons), dtype=torch.float64, device=device)
    counts = torch.zeros(len(lessons), dtype=torch.long, device=device)
    longest = max(len(plan) for plan in batches)
    live = set(range(len(lessons)))
    for step in range(longest):
        rows = [row for row in sorted(live) if step < len(batches[row])]
        if not rows:
            break
        for band in store.bands([batches[row][step] for row in rows]):
            some = [rows[place] for place in band]
            rates = [_rate(settings, clock, step / len(batches[row])) for row in some]
            index = torch.tensor(some, device=device)
            picks = [batches[row][step] for row in some]
            totals[index] += state.step(store, index, picks, rates, settings).to(totals.dtype)
            counts[index] += 1
        if watch:
            done = [row for row in rows if step + 1 in ends[row]]
            live -= watch.check(store, state.stack, done, [lessons[row].validation for row in done])
        if progress:
            progress(step + 1, longest)
    final = watch.best if watch else state.stack
    return Fitted(final, totals / counts.clamp_min(1), counts, state.moments, state.made)


def _rate(settings: TrainSettings, clock: Clock, share: float) -> float:
    progress = (clock.round - 1 + share) / clock.rounds
    decay = settings.round_decay ** (clock.round - 1)
    return settings.lr * decay * rate_at(settings.schedule, progress, settings.warmup)


@dataclass
class _State:
    """The moving parts of a fit, and what pulls at them."""

    stack: Stack
    moments: Moments
    made: Tensor
    anchor: Anchor | None

    def step(
        self,
        store: ExampleStore,
        index: Tensor,
        picks: Sequence[Rows],
        rates: Sequence[float],
        settings: TrainSettings,
    ) -> Tensor:
        """One AdamW step of the rows in `index`; returns their losses."""
        rows = self.stack.rows(index)
        leaves = {name: value.detach().requires_grad_() for name, value in rows.tensors.items()}
        moving = replace(rows, tensors=leaves)
        losses = run(store.model, moving, store.batch(picks)).client_losses()
        objective = losses
        if self.anchor is not None:
            objective = losses + self.anchor.cost(moving, index, store.model.layout.modules)
        found = torch.autograd.grad(objective.sum(), list(leaves.values()))
        grads = dict(zip(leaves, found, strict=True))
        if settings.clip is not None:
            factors = clip_factors(grads.values(), settings.clip)
            grads = {name: grad * per_client(factors, grad) for name, grad in grads.items()}
        self.made[index] += 1
        lr = torch.tensor(rates, dtype=torch.float64, device=index.device)
        head_factor = (settings.head_lr or settings.lr) / settings.lr
        for name, grad in grads.items():
            first, second = self.moments[name]
            value, moments = adamw_update(
                rows.tensors[name],
                grad,
                (first.index_select(0, index), second.index_select(0, index)),
                steps=self.made[index],
                lr=lr * head_factor if name.startswith("head/") else lr,
                weight_decay=settings.weight_decay,
            )
            self.stack.tensors[name] = self.stack.tensors[name].index_copy(0, index, value)
            self.moments[name] = (
                first.index_copy(0, index, moments[0]),
                second.index_copy(0, index, moments[1]),
            )
        return losses.detach()
