"""Local training on all cores: rows of a stack are independent, so each core trains some."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from atlas.config.models import TrainSettings
from atlas.federation.client import Clock, Course, Fitted, Progress, fit, plan_batches
from atlas.federation.forward import Stack
from atlas.federation.split import Wire
from atlas.federation.store import PASS_TOKENS, ExampleStore, banded
from atlas.ops.parallel import cores_for, lending, side_by_side, worth_sharing

HANDS = 2
"""At least about so many groups of rows for each core, so that all end at about the same time."""


def fit_on_cores(
    store: ExampleStore,
    course: Course,
    settings: TrainSettings,
    clock: Clock,
    progress: Progress | None = None,
) -> Fitted:
    """As `fit`, with the rows divided among the cores that torch was given.

    Which rows stay together depends on their texts and the number of cores alone, not on which core
    is free first, so a run gives the same bits whenever it is repeated with as many of them.
    """
    plans = [plan_batches(lesson, settings, clock) for lesson in course.lessons]
    steps = [sum(map(len, plan)) for plan in plans]
    tokens = [
        float(sum(store.lengths_of(batch).sum() for epoch in plan for batch in epoch))
        for plan in plans
    ]
    cores = cores_for(course.stack.labels.device)
    width = [all_ / made for all_, made in zip(tokens, steps, strict=True)]
    hands = banded(width, min(PASS_TOKENS, sum(width) / (HANDS * cores)))
    loads = [sum(tokens[row] for row in hand) for hand in hands]
    if not worth_sharing(loads, cores):
        return fit(store, course, settings, clock, progress)
    hands = [hands[place] for place in sorted(range(len(hands)), key=lambda at: -loads[at])]
    lend = lending(store.twin() for _ in range(cores))
    tell = progress and _counting(progress, sum(max(steps[row] for row in h) for h in hands))

    def job(hand: Sequence[int]) -> Fitted:
        with lend() as own:
            return fit(own, course.rows(hand), settings, clock, tell)

    return _joined(course.stack, hands, side_by_side([partial(job, hand) for hand in hands]))


def _counting(progress: Progress, total: int) -> Progress:
    """Tells the steps of all threads together."""
    lock, done = Lock(), 0

    def step(made: int, planned: int) -> None:
        del made, planned
        nonlocal done
        with lock:
            done += 1
            progress(done, total)

    return step


def _joined(stack: Stack, hands: Sequence[Sequence[int]], parts: Sequence[Fitted]) -> Fitted:
    """The rows of all hands in the order of the stack they were dealt from."""
    dealt = torch.tensor([row for hand in hands for row in hand], device=stack.labels.device)
    order = torch.argsort(dealt)

    def whole(values: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(values)).index_select(0, order)

    tensors = {name: whole([part.stack.tensors[name] for part in parts]) for name in stack.tensors}
    moments = {
        name: (
            whole([part.moments[name][0] for part in parts]),
            whole([part.moments[name][1] for part in parts]),
        )
        for name in stack.tensors
    }
    wire = Wire()
    for hand, part in zip(hands, parts, strict=True):
        wire.up |= {hand[row]: count for row, count in part.wire.up.items()}
        wire.down |= {hand[row]: count for row, count in part.wire.down.items()}
        wire.payload += part.wire.payload
    return Fitted(
        Stack(tensors, stack.scales, stack.labels, stack.still, stack.deltas),
        whole([part.losses for part in parts]),
        whole([part.steps for part in parts]),
        moments,
        whole([part.made for part in parts]),
        wire,
    )
