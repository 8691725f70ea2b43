"""How far the two halves of a round's batches disagree, measured while training goes on.

AdamW's update is linear in the gradients once its second moments are taken as they are. So what
each batch contributed to a row's change is known: momentum is followed a second time, with the
gradients of odd steps counting for one half and those of even steps against it. Training reads none
of it, and no bit of it changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.federation.adapters.adapter import Layout, heads_of
from atlas.federation.batching.forward import Stack
from atlas.ops.lowrank.factors import squared_norms
from atlas.ops.optim import BETA1, Columns, adam_direction, gradient_weights, per_client

FEWEST = 2
"""Steps, and batches of a pass: with fewer there are no halves, or none with other examples."""
PARTS = ("adapter", "head")
"""What noise is told of, apart, as heads are mixed with fewer clients."""


@dataclass(frozen=True)
class HalfPlan:
    """How the steps of a row become halves.

    Attributes:
        signs: What each step's gradient counts [steps]: for the first half or against it, such
            that a gradient that never changes comes to nothing.
        factor: What turns the squared distance of the halves into the noise of the whole; 1/4 if
            all steps count alike.
        passes: How often the steps go over the row's examples. Of more than one pass, by how much
            more noise the whole has than as many batches of other examples would: twice as much
            with two passes, if all steps count alike.
        rates: The rate of each step.
        per_pass: Steps that go once over the examples.
        made: Steps that the moments already hold.
    """

    signs: NDArray[np.float64]
    factor: float
    passes: float
    rates: Sequence[float]
    per_pass: int
    made: int

    def until(self, steps: int) -> HalfPlan | None:
        """The plan of its first so many steps, for a row that is left as it was after these."""
        return plan_halves(self.rates[:steps], self.per_pass, self.made)

    def rebalanced(self, other: HalfPlan, change: Tensor, whole: Tensor) -> Tensor:
        """What the signs of another plan would have made of the same gradients.

        Args:
            other: The plan, in which steps belong to the same halves as in this one.
            change: What gradients with this plan's signs changed.
            whole: What they changed without signs.
        """
        plus, minus, more, less = (float(plan.signs[i]) for plan in (self, other) for i in (0, 1))
        # Halves h and k give h + k = whole and plus * h + minus * k = change.
        size = plus - minus
        return change * ((more - less) / size) + whole * ((plus * less - minus * more) / size)


def plan_halves(rates: Sequence[float], per_pass: int, made: int) -> HalfPlan | None:
    """Alternate steps become halves; None if there are too few.

    Args:
        rates: The rate of each step.
        per_pass: Steps that go once over the examples.
        made: Steps that the moments already hold.
    """
    if len(rates) < FEWEST or per_pass < FEWEST:
        return None
    weights = gradient_weights(np.asarray(rates, dtype=np.float64), made)
    first = np.arange(len(weights)) % 2 == 0
    total, sums = weights.sum(), (weights[first].sum(), weights[~first].sum())
    if min(sums) <= 0:
        return None
    squares = weights**2
    apart = squares[first].sum() / sums[0] ** 2 + squares[~first].sum() / sums[1] ** 2
    signs = np.where(first, total / sums[0], -total / sums[1])
    factor = float(squares.sum() / total**2 / apart)
    return HalfPlan(signs, factor, _passes(weights, per_pass), rates, per_pass, made)


def _passes(weights: NDArray[np.float64], per_pass: int) -> float:
    """See `HalfPlan.passes`: an example counts by the sum of its steps, one of each pass."""
    if len(weights) <= per_pass:
        return len(weights) / per_pass
    sums = [weights[i : i + per_pass].sum() for i in range(0, len(weights), per_pass)]
    squares = float((weights**2).sum())
    again = float(sum(sums) ** 2 - sum(one**2 for one in sums)) / per_pass
    return (squares + again) / squares


@dataclass
class Followed:
    """What gradients with signs, or without, change in rows as they train.

    Attributes:
        momentum: First moments [n, P].
        change: What they moved [n, P].
    """

    momentum: Tensor
    change: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Followed:
        """Before the first step of rows with `values` [n, P]."""
        zeros = torch.zeros_like(values)
        return cls(zeros, zeros.clone())

    def read(self, index: Tensor | None, grad: Tensor) -> None:
        """Count gradients [n, P] of some rows; `index` is None for all."""
        if index is None:
            self.momentum.lerp_(grad, 1 - BETA1)
        else:
            moved = self.momentum[index].lerp_(grad, 1 - BETA1)
            self.momentum.index_copy_(0, index, moved)

    def follow(self, index: Tensor | None, second: Tensor, steps: Tensor, rates: Tensor) -> None:
        """Move as the step just made has moved; arguments as in `adamw_`."""
        momentum = self.momentum if index is None else self.momentum[index]
        moved = adam_direction(momentum, second, steps) * -rates
        if index is None:
            self.change += moved
        else:
            self.change.index_add_(0, index, moved)


@dataclass
class Halves:
    """The difference of what the halves of each row's batches changed so far.

    Attributes:
        plans: One per row; None for rows without halves.
        signed: Gradients with the signs of the plans.
        counts: Steps made in this fit, by row.
        whole: Gradients without signs, where rows may end before their plans do.
        kept: There, by row: the plan up to its best epoch, and the change by that.
    """

    plans: Sequence[HalfPlan | None]
    signed: Followed
    counts: list[int]
    whole: Followed | None = None
    kept: dict[int, tuple[HalfPlan, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, plans: Sequence[HalfPlan | None], values: Tensor) -> Halves:
        """Before the first step of rows with `values` [n, P]."""
        return cls(plans, Followed.of(values), [0] * len(plans))

    def expect_stops(self) -> None:
        """Rows may end as they were when last told to `keep`; to be said before the first step."""
        self.whole = Followed.of(self.signed.momentum)

    def read(self, rows: Sequence[int], index: Tensor | None, grad: Tensor) -> None:
        """Count the gradients [n, P] of some rows, as clipped; `index` is None for all."""
        signs = [self._sign(row) for row in rows]
        for row in rows:
            self.counts[row] += 1
        sign = per_client(torch.tensor(signs, dtype=torch.float64, device=grad.device), grad)
        self.signed.read(index, grad * sign)
        if self.whole is not None:
            self.whole.read(index, grad)

    def follow(self, index: Tensor | None, second: Tensor, steps: Tensor, rates: Tensor) -> None:
        """Move as the step just made has moved; arguments as in `adamw_`."""
        self.signed.follow(index, second, steps, rates)
        if self.whole is not None:
            self.whole.follow(index, second, steps, rates)

    def keep(self, row: int) -> None:
        """Remember a row as it is: what it has trained so far may be what it ends with.

        Signs are balanced over all planned steps. Over fewer of them a gradient that never changes
        would count as a difference of halves, so they are balanced anew.
        """
        assert self.whole is not None
        plan = self.plans[row]
        if plan is None or (shorter := plan.until(self.counts[row])) is None:
            return
        both = self.signed.change[row], self.whole.change[row]
        self.kept[row] = shorter, plan.rebalanced(shorter, *both)

    def noise(self, layout: Layout, before: Stack, after: Stack, columns: Columns) -> Tensor:
        """Of each row [n, 3], float64: variance of adapter and head, and passes; NaN without.

        In the space that is mixed: a product's change is dB (A + A') / 2 + (B + B') / 2 dA,
        exactly and linear in dA and dB, so halves of these are halves of it.
        """
        change = self.signed.change.clone()
        for row, (_, kept) in self.kept.items():
            change[row] = kept
        gaps = {name: part.double() for name, part in columns.views(change).items()}
        body = torch.zeros(len(change), dtype=torch.float64, device=change.device)
        for i in range(len(layout.modules)):
            body += _module_gap(layout, i, gaps, before, after)
        heads = [gap.square().flatten(1).sum(1) for gap in heads_of(gaps).values()]
        head = torch.stack(heads).sum(0) if heads else torch.zeros_like(body)
        nothing = float("nan"), float("nan")
        told = [(plan.factor, plan.passes) if plan else nothing for plan in self._ended()]
        factor, passes = torch.tensor(told, dtype=torch.float64, device=change.device).T
        return torch.stack([body * factor, head * factor, passes], 1)

    def _ended(self) -> list[HalfPlan | None]:
        """The plan of the steps that each row ends with."""
        if self.whole is None:
            return list(self.plans)
        return [self.kept[row][0] if row in self.kept else None for row in range(len(self.plans))]

    def _sign(self, row: int) -> float:
        plan = self.plans[row]
        return 0.0 if plan is None else float(plan.signs[self.counts[row]])


def _module_gap(
    layout: Layout, module: int, gaps: dict[str, Tensor], before: Stack, after: Stack
) -> Tensor:
    """The squared size of a module's difference of halves, by row [n]."""
    names = layout.parts(module)
    if layout.place(module):
        # Orthonormal bases around a core leave its numbers' distances as they are.
        return torch.stack([gaps[name].square().flatten(1).sum(1) for name in names]).sum(0)
    middle = [(before.tensors[name].double() + after.tensors[name].double()) / 2 for name in names]
    left = torch.cat([gaps[names[1]], middle[1]], dim=2)
    right = torch.cat([middle[0], gaps[names[0]]], dim=1)
    return squared_norms(right, left) * after.scales[module].to(torch.float64).square()
