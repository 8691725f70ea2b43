"""Local training on all cores: rows of a stack are independent, so each core trains some."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Lock

import torch
from torch import Tensor

from atlas.config.training import TrainSettings
from atlas.federation.batching.forward import Stack
from atlas.federation.batching.store import PASS_TOKENS, ExampleStore, Rows, banded
from atlas.federation.training.loop import Clock, Course, Fitted, StepProgress, fit, plan_batches
from atlas.federation.training.split import Wire
from atlas.runs.cores import cores_for, evened, shared_first

TEXT, STEP, DIVIDED_STEP = 6, 50, 170
"""A text, and a step of a group on one core or on all, cost about as much as so many tokens
(`docs/speed.md`)."""
HANDS = 2
"""At least about so many groups of rows for each core, so that all end at about the same time."""


def fit_on_cores(
    store: ExampleStore,
    course: Course,
    settings: TrainSettings,
    clock: Clock,
    progress: StepProgress | None = None,
) -> Fitted:
    """As `fit`, with the rows divided among the cores that torch was given.

    Which rows stay together depends on their texts and the number of cores alone, not on which core
    is free first, so a run gives the same bits whenever it is repeated with as many of them. Rows
    that would leave cores idle are trained after the others, the texts of each step divided (see
    `sharing`). Where rows are shared out, `progress` is told the steps of all groups together.
    """
    plans = [plan_batches(lesson, settings, clock) for lesson in course.lessons]
    efforts = [Effort.of(store, plan) for plan in plans]
    cores = cores_for(course.stack.labels.device)
    load = partial(_load, efforts)
    hands = evened(_hands(efforts, cores), load, cores)
    count = shared_first(
        [load(hand) for hand in hands], cores, partial(_divided, efforts, hands, cores)
    )
    if not count:
        return fit(store, course, settings, clock, progress)
    rest = sorted(row for hand in hands[count:] for row in hand)
    hands = [*hands[:count], *([rest] if rest else [])]
    halted = Event()
    tell = _counting(progress, sum(_steps(efforts, hand) for hand in hands), halted)

    def train(own: ExampleStore, hand: Sequence[int]) -> Fitted:
        return fit(own, course.rows(hand), settings, clock, tell)

    parts = store.on_cores(train, hands[:count], halted)
    parts += [train(store, hand) for hand in hands[count:]]
    return _joined(course.stack, hands, parts)


@dataclass(frozen=True)
class Effort:
    """What a row's local training takes: its steps, and texts and tokens of all of them."""

    steps: int
    texts: int
    tokens: int

    @classmethod
    def of(cls, store: ExampleStore, plan: Sequence[Sequence[Rows]]) -> Effort:
        """The effort of the batches of all epochs."""
        batches = [batch for epoch in plan for batch in epoch]
        tokens = sum(int(store.lengths_of(batch).sum()) for batch in batches)
        return cls(len(batches), sum(map(len, batches)), tokens)

    @property
    def each(self) -> float:
        """Tokens of a step."""
        return self.tokens / max(1, self.steps)


def _hands(efforts: Sequence[Effort], cores: int) -> list[list[int]]:
    """Rows in groups of like many tokens a step that are enough for the cores.

    The passes that all cores are in together hold no more than one pass of one core would.
    """
    tokens = [effort.each for effort in efforts]
    return banded(tokens, min(PASS_TOKENS, sum(tokens) / HANDS) / cores)


def _load(efforts: Sequence[Effort], hand: Sequence[int]) -> float:
    """How long rows take that step together on one core, in tokens."""
    return _tokens(efforts, hand) + STEP * _steps(efforts, hand)


def _divided(
    efforts: Sequence[Effort], hands: Sequence[Sequence[int]], cores: int, first: int
) -> float:
    """How long the rows of the hands from `first` on take with the texts of all steps divided."""
    rows = [row for hand in hands[first:] for row in hand]
    if not rows:
        return 0.0
    passes = banded([efforts[row].each for row in rows], PASS_TOKENS)
    return _tokens(efforts, rows) / cores + DIVIDED_STEP * len(passes) * _steps(efforts, rows)


def _tokens(efforts: Sequence[Effort], rows: Sequence[int]) -> float:
    return sum(efforts[row].tokens + TEXT * efforts[row].texts for row in rows)


def _steps(efforts: Sequence[Effort], hand: Sequence[int]) -> int:
    return max(efforts[row].steps for row in hand)


def _counting(progress: StepProgress | None, total: int, halted: Event) -> StepProgress:
    """Tells the steps of all threads together, and ends them when they are halted."""
    lock, done = Lock(), 0

    def step(made: int, planned: int) -> None:
        del made, planned
        nonlocal done
        if halted.is_set():
            raise CancelledError
        with lock:
            done += 1
            if progress:
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
        replace(stack, tensors=tensors),
        whole([part.losses for part in parts]),
        whole([part.steps for part in parts]),
        moments,
        whole([part.made for part in parts]),
        wire,
        whole(counted)
        if (counted := [p.salience for p in parts if p.salience is not None])
        else None,
        whole(noise) if (noise := [p.noise for p in parts if p.noise is not None]) else None,
    )
