"""Local training: the one loop every strategy uses, for one client or a whole cohort.

Rows of a stack may stop early, each by its own validation data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from atlas.config.training import TrainSettings
from atlas.federation.adapters.adapter import Layout
from atlas.federation.batching.forward import Stack
from atlas.federation.batching.store import ExampleStore, Rows
from atlas.federation.training.evaluate import mean_losses
from atlas.federation.training.halves import HalfPlan, Halves, plan_halves
from atlas.federation.training.split import Wire
from atlas.federation.training.step import Anchor, Moments, Salience, Turn, begin
from atlas.ops.optim import rate_at
from atlas.runs.seeds import generator


class EarlyStop:
    """Watches validation losses at epoch ends and remembers each row's best tensors."""

    def __init__(self, patience: int, stack: Stack, halves: Halves | None = None) -> None:
        self.patience = patience
        self.halves = halves
        self.best = replace(stack, tensors=dict(stack.tensors))
        self.losses = [float("inf")] * len(stack.labels)
        self.waited = [0] * len(stack.labels)
        if halves is not None:
            halves.expect_stops()

    def check(
        self, store: ExampleStore, stack: Stack, rows: Sequence[int], validation: Sequence[Rows]
    ) -> set[int]:
        """Rows that should stop, of those that have just finished an epoch."""
        if not rows:
            return set()
        index = torch.tensor(rows, device=stack.labels.device)
        found = mean_losses(store, stack.rows(index), validation)
        stopped = set()
        for row, loss in zip(rows, found, strict=True):
            if loss < self.losses[row]:
                self.losses[row], self.waited[row] = loss, 0
                self._remember(stack, row)
                continue
            self.waited[row] += 1
            if self.waited[row] >= self.patience:
                stopped.add(row)
        return stopped

    def _remember(self, stack: Stack, row: int) -> None:
        for name, value in stack.tensors.items():
            kept = self.best.tensors[name].clone()
            kept[row] = value[row]
            self.best.tensors[name] = kept
        if self.halves is not None:
            self.halves.keep(row)


Measure = Literal["gradient", "product", "noise"]
StepProgress = Callable[[int, int], None]


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
class Course:
    """Rows of a stack, and what each is taught from where.

    Attributes:
        stack: Adapters before training; not changed by it.
        lessons: One per row.
        carried: Moments and step counts of earlier rounds, if they are kept.
        anchor: What rows are pulled to; losses are told without the pull.
        points: Where the blocks of each row are split, None for a row that is not.
        measure: What is to be told beside losses: what modules count (see `Salience`), or the
            noise of the update (see `Halves`).
    """

    stack: Stack
    lessons: Sequence[Lesson]
    carried: tuple[Moments, Tensor] | None = None
    anchor: Anchor | None = None
    points: Sequence[int | None] | None = None
    measure: Measure | None = None

    def rows(self, places: Sequence[int]) -> Course:
        """The course of some rows only."""
        index = torch.tensor(places, device=self.stack.labels.device)
        carried = None
        if self.carried is not None:
            moments, made = self.carried
            carried = ({k: (m[index], v[index]) for k, (m, v) in moments.items()}, made[index])
        return Course(
            self.stack.rows(index),
            [self.lessons[row] for row in places],
            carried,
            self.anchor.rows(index) if self.anchor else None,
            [self.points[row] for row in places] if self.points else None,
            self.measure,
        )


@dataclass(frozen=True)
class Fitted:
    """A trained stack: its tensors, mean training loss, steps made and optimiser moments.

    `wire` has the bytes that rows sent and were sent, where their blocks were split; `salience`
    what their modules counted [n, modules], `noise` the variance of adapter and head in their
    updates and how often they went over their examples [n, 3], where that was asked for.
    """

    stack: Stack
    losses: Tensor
    steps: Tensor
    moments: Moments
    made: Tensor
    wire: Wire
    salience: Tensor | None = None
    noise: Tensor | None = None


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


def fit(
    store: ExampleStore,
    course: Course,
    settings: TrainSettings,
    clock: Clock,
    progress: StepProgress | None = None,
) -> Fitted:
    """Train every row of a stack on its own lesson.

    Rows are independent: own batches, step counts, clipping, rate and early stop. A row that has
    finished is no longer part of the forward pass and is not touched.

    Args:
        store: Where the lessons' examples are.
        course: What to train, and on what.
        settings: Optimiser and length of training.
        clock: Where in the run this is.
        progress: Called with (steps made, steps planned) of the longest row.
    """
    stack, lessons, points = course.stack, course.lessons, course.points
    plans = [plan_batches(lesson, settings, clock) for lesson in lessons]
    batches = [[batch for epoch in plan for batch in epoch] for plan in plans]
    ends = [set(np.cumsum([len(epoch) for epoch in plan]).tolist()) for plan in plans]
    device = stack.labels.device
    salience = _salience(store.model.layout, course)
    halves = _halves(course, plans, settings, clock) if course.measure == "noise" else None
    state = begin(stack, course.carried, course.anchor, salience, halves)
    watch = None
    if settings.early_stop:
        watch = EarlyStop(settings.early_stop.patience, stack, state.halves)
    totals = torch.zeros(len(lessons), dtype=torch.float64, device=device)
    counts = torch.zeros(len(lessons), dtype=torch.long, device=device)
    longest = max(len(plan) for plan in batches)
    live = set(range(len(lessons)))
    for step in range(longest):
        rows = [row for row in sorted(live) if step < len(batches[row])]
        if not rows:
            break
        for some in _together(store, rows, [batches[row][step] for row in rows], points):
            turn = Turn(
                rows=some,
                picks=[batches[row][step] for row in some],
                rates=[_rate(settings, clock, step / len(batches[row])) for row in some],
                point=points[some[0]] if points else None,
            )
            index = torch.tensor(some, device=device)
            totals[index] += state.step(store, turn, settings).to(totals.dtype)
            counts[index] += 1
        if watch:
            done = [row for row in rows if step + 1 in ends[row]]
            live -= watch.check(store, state.stack, done, [lessons[row].validation for row in done])
        if progress:
            progress(step + 1, longest)
    trained, moments = state.fitted()
    losses = totals / counts.clamp_min(1)
    final = watch.best if watch else trained
    counted = None if salience is None else salience.totals
    noise = None
    if state.halves is not None:
        noise = state.halves.noise(store.model.layout, stack, final, state.columns)
    return Fitted(final, losses, counts, moments, state.made, state.wire, counted, noise)


def _halves(
    course: Course, plans: Sequence[list[list[Rows]]], settings: TrainSettings, clock: Clock
) -> list[HalfPlan | None]:
    """How each row's steps become halves."""
    made = [0] * len(plans) if course.carried is None else course.carried[1].tolist()
    found = []
    for lesson, plan, before in zip(course.lessons, plans, made, strict=True):
        steps = sum(map(len, plan))
        rates = [_rate(settings, clock, step / steps) for step in range(steps)]
        found.append(plan_halves(rates, -(-len(lesson.train) // settings.batch), before))
    return found


def _salience(layout: Layout, course: Course) -> Salience | None:
    if course.measure is None or course.measure == "noise":
        return None
    modules = range(len(layout.modules))
    labels = course.stack.labels
    totals = torch.zeros(len(labels), len(modules), dtype=torch.float64, device=labels.device)
    return Salience(course.measure, [layout.parts(i) for i in modules], totals)


def _together(
    store: ExampleStore,
    rows: Sequence[int],
    picks: Sequence[Rows],
    points: Sequence[int | None] | None,
) -> list[list[int]]:
    """Rows that step in one pass: texts of like length, blocks split at the same place."""
    found = []
    for band in store.bands(picks):
        some = [rows[place] for place in band]
        own = {row: points[row] if points else None for row in some}
        for point in dict.fromkeys(own.values()):
            found.append([row for row in some if own[row] == point])
    return found


def _rate(settings: TrainSettings, clock: Clock, share: float) -> float:
    progress = (clock.round - 1 + share) / clock.rounds
    decay = settings.round_decay ** (clock.round - 1)
    return settings.lr * decay * rate_at(settings.schedule, progress, settings.warmup)
