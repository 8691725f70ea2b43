"""One optimiser step of some rows of a stack, whole or split between client and server.

Losses of a batch add up over its texts, and so do their gradients: each core takes some texts of
every row, and the sums are those of the undivided step. Where all cores are busy with rows of their
own, there is one share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from atlas.config.training import TrainSettings
from atlas.federation.adapters.adapter import Layout, is_core, is_gate, is_head
from atlas.federation.batching.forward import Stack, run
from atlas.federation.batching.store import ExampleStore, Rows
from atlas.federation.training.halves import HalfPlan, Halves
from atlas.federation.training.split import Gradients, Wire, split_gradients
from atlas.ops.lowrank.factors import pull
from atlas.ops.optim import Columns, adamw_, clip_factors, per_client
from atlas.runs.cores import cores_for


def shared_gradients(
    store: ExampleStore, stack: Stack, picks: Sequence[Rows]
) -> tuple[Tensor, Gradients]:
    """Mean losses of the rows of a stack [n], and the gradients of their sum.

    Args:
        store: Where the examples are.
        stack: Adapters whose tensors ask for gradients.
        picks: The examples of each row.
    """
    names, values = list(stack.tensors), list(stack.tensors.values())
    shares = deal_texts(store, picks, cores_for(store.labels.device))
    if len(shares) == 1:
        losses = run(store.model, stack, store.batch(picks)).client_losses()
        # Gates count for nothing where there is nothing to weigh.
        grads = torch.autograd.grad(losses.sum(), values, materialize_grads=True)
        return losses, dict(zip(names, grads, strict=True))
    counts = torch.tensor([max(1, store.counts_of(pick).sum()) for pick in picks])

    def add_up(own: ExampleStore, share: Sequence[Rows]) -> list[Tensor]:
        losses = run(own.model, stack, own.batch(share)).losses.sum(1) / counts
        grads = torch.autograd.grad(losses.sum(), values, materialize_grads=True)
        return [losses.detach(), *grads]

    parts = store.on_cores(add_up, shares)
    # In the order of the shares, not of their ends: the same bits every time.
    total, *found = (reduce(torch.add, some) for some in zip(*parts, strict=True))
    return total, dict(zip(names, found, strict=True))


def deal_texts(store: ExampleStore, picks: Sequence[Rows], cores: int) -> list[list[Rows]]:
    """The examples of each row in as many shares as there are cores, of about as many tokens.

    Where a row has too few texts for that, all of them are one share.
    """
    if cores == 1 or min(len(pick) for pick in picks) < cores:
        return [list(picks)]
    shares: list[list[Rows]] = [[] for _ in range(cores)]
    held = np.zeros(cores)
    for pick in picks:
        lengths = store.lengths_of(pick)
        owners, own = np.zeros(len(pick), dtype=np.int64), np.zeros(cores)
        for place in np.argsort(-lengths, kind="stable"):
            # Nobody goes without, and then what all rows dealt so far add up to decides.
            owner = int(np.lexsort((held + own, own > 0))[0])
            owners[place] = owner
            own[owner] += lengths[place]
        held += own
        for core, share in enumerate(shares):
            share.append(pick[owners == core])
    return shares


Moments = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Anchor:
    """What the rows of a stack are pulled to; see `pull`.

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

    def cost(self, stack: Stack, index: Tensor, layout: Layout) -> Tensor:
        """What the pull adds to the objectives of `stack`, the rows in `index` [n].

        Cores lie between the same orthonormal factors: their numbers tell how far apart they are.
        """
        there = self.rows(index)
        here = {name: (value, there.tensors[name]) for name, value in stack.tensors.items()}
        plain = [i for i in range(len(layout.modules)) if not layout.place(i)]
        factors = [[here[name] for name in layout.parts(i)] for i in plain]
        layers = [((a[0], b[0]), (a[1], b[1])) for a, b in factors]
        others = [pair for name, pair in here.items() if is_head(name) or is_core(name)]
        found = pull(layers, [stack.scales[i] for i in plain], others)
        return there.strength.to(found.dtype) * found


@dataclass(frozen=True)
class Salience:
    """What modules count in training, added up over steps.

    Attributes:
        measure: `gradient`, the squared gradient, or `product`, the size of weight times gradient.
        names: The tensors of each module.
        totals: By row and module [n, modules].
    """

    measure: Literal["gradient", "product"]
    names: Sequence[tuple[str, str]]
    totals: Tensor

    def add(self, index: Tensor, values: Mapping[str, Tensor], grads: Gradients) -> None:
        """Count a step of the rows in `index`."""
        found = []
        for both in self.names:
            sizes = [
                grads[name].square() if self.measure == "gradient" else values[name] * grads[name]
                for name in both
            ]
            found.append(torch.stack([size.abs().flatten(1).sum(1) for size in sizes]).sum(0))
        self.totals[index] += torch.stack(found, 1).to(self.totals.dtype)


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
class TrainingState:
    """The moving parts of a fit, and what pulls at them.

    Attributes:
        stack: Adapters; their tensors are views of `values`.
        values: All their numbers [n, P].
        moments: First and second moments [n, P].
        made: Steps each row has made [n].
        anchor: What rows are pulled to.
        columns: Whose numbers are where in P.
        wire: Carries and counts what a split step sends.
        salience: What every row's modules have counted so far [n, modules]; None if nobody asks.
        halves: How far halves of the batches disagree; None if nobody asks.
    """

    stack: Stack
    values: Tensor
    moments: tuple[Tensor, Tensor]
    made: Tensor
    anchor: Anchor | None
    columns: Columns
    wire: Wire = field(default_factory=Wire)
    salience: Salience | None = None
    halves: Halves | None = None

    def step(self, store: ExampleStore, turn: Turn, settings: TrainSettings) -> Tensor:
        """One AdamW step; returns the losses of the rows that made it."""
        device = self.stack.labels.device
        index = torch.tensor(turn.rows, device=device)
        # Where every row takes part there is nothing to pick out, and no copy to hold.
        whole = turn.rows == list(range(len(self.stack.labels)))
        rows = self.stack if whole else self.stack.rows(index)
        leaves = {name: value.detach().requires_grad_() for name, value in rows.tensors.items()}
        moving = replace(rows, tensors=leaves)
        losses, grads = self._gradients(store, moving, index, turn)
        del moving, leaves
        if self.salience is not None:
            self.salience.add(index, rows.tensors, grads)
        grad = self.columns.join(grads)
        del grads
        self._update(rows, turn, settings, grad, None if whole else index)
        return losses.detach()

    def _update(
        self,
        rows: Stack,
        turn: Turn,
        settings: TrainSettings,
        grad: Tensor,
        index: Tensor | None,
    ) -> None:
        """Write what a gradient [n, P] of rows does to them; `index` is None for all."""
        if rows.still is not None:
            grad.mul_(self.columns.each(rows.moving, grad))
        if settings.clip is not None:
            grad.mul_(per_client(clip_factors([grad], settings.clip), grad))
        kept = (self.values, *self.moments)
        value, first, second = kept if index is None else (one[index] for one in kept)
        made = self.made if index is None else self.made[index]
        made += 1
        rates = self._rates(rows, turn, settings, grad)
        if self.halves is not None:
            self.halves.read(turn.rows, index, grad)
        adamw_(
            value,
            grad,
            (first, second),
            steps=made,
            rates=rates,
            weight_decay=settings.weight_decay,
        )
        if self.halves is not None:
            self.halves.follow(index, second, made, rates)
        if index is not None:
            self.made[index] = made
            for one, new in zip(kept, (value, first, second), strict=True):
                one.index_copy_(0, index, new)

    def _rates(self, rows: Stack, turn: Turn, settings: TrainSettings, like: Tensor) -> Tensor:
        """The rates of rows, [n, 1] where all their tensors share one, else [n, P]."""
        rates = torch.tensor(turn.rates, dtype=torch.float64, device=like.device)
        head_factor = (settings.head_lr or settings.lr) / settings.lr
        gate_factor = (settings.gate_lr or settings.lr) / settings.lr
        if head_factor == gate_factor == 1.0 and rows.still is None:
            return per_client(rates, like)

        def own(name: str) -> Tensor:
            factor = head_factor if is_head(name) else gate_factor if is_gate(name) else 1.0
            return rates * factor * rows.moving(name)

        return self.columns.each(own, like)

    def fitted(self) -> tuple[Stack, Moments]:
        """Adapters and moments as they are, in tensors of their own."""
        first, second = (self._own(one) for one in self.moments)
        pairs = {name: (first[name], second[name]) for name in first}
        return replace(self.stack, tensors=self._own(self.values)), pairs

    def _own(self, flat: Tensor) -> dict[str, Tensor]:
        return {name: view.clone() for name, view in self.columns.views(flat).items()}

    def _gradients(
        self, store: ExampleStore, moving: Stack, index: Tensor, turn: Turn
    ) -> tuple[Tensor, Gradients]:
        """Losses of the rows, and gradients of losses and pull together."""
        model, names = store.model, list(moving.tensors)
        if turn.point is None:
            losses, grads = shared_gradients(store, moving, turn.picks)
        else:
            batch = store.batch(turn.picks)
            outcome, grads = split_gradients(model, moving, batch, turn.point, turn.rows, self.wire)
            losses = outcome.client_losses()
        if self.anchor is not None:
            # Each side of a split knows the adapters it trains, so the pull needs no message.
            pulled = self.anchor.cost(moving, index, model.layout)
            values = [moving.tensors[name] for name in names]
            more = torch.autograd.grad(pulled.sum(), values, materialize_grads=True)
            grads = {n: grads[n] + extra for n, extra in zip(names, more, strict=True)}
        return losses, grads


def begin(
    stack: Stack,
    carried: tuple[Moments, Tensor] | None,
    anchor: Anchor | None,
    salience: Salience | None = None,
    halves: Sequence[HalfPlan | None] | None = None,
) -> TrainingState:
    """The state before the first step; with `carried`, moments and counts of earlier rounds."""
    columns = Columns.of(stack.tensors)
    values = columns.join(stack.tensors)
    moments, made = carried or (fresh_moments(stack), torch.zeros_like(stack.labels))
    first, second = (
        columns.join({name: pair[which] for name, pair in moments.items()}) for which in (0, 1)
    )
    own = replace(stack, tensors=columns.views(values))
    followed = None if halves is None else Halves.of(halves, values)
    return TrainingState(
        own,
        values,
        (first, second),
        made.clone(),
        anchor,
        columns,
        salience=salience,
        halves=followed,
    )


def fresh_moments(stack: Stack) -> Moments:
    """Zero moments for every tensor."""
    return {k: (torch.zeros_like(v), torch.zeros_like(v)) for k, v in stack.tensors.items()}
