"""What a memory did this step, as plain numbers, cheap enough to leave on.

Everything is reduced on the device and read with one transfer. The rank comes from traces of the
Gram matrix, not from singular values; `entropy_rank` is the exact one, for reports.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Points = Sequence[tuple[float, float]]
FloorShape = Literal["stairs", "ramp"]
SHARE = "mix"
"""The gate that is the memory's share in a layer's output, [B, T, channels]."""
DEAD = 0.01
"""A channel that uses less of the room above its floor is dead."""


def floored_gate(x: Tensor, floor: float) -> Tensor:
    """The gate floor + (1 - floor) * sigmoid(x): its branch is never shut off from learning.

    Raises:
        ValueError: The floor is not in [0, 1).
    """
    if not 0 <= floor < 1:
        raise ValueError(f"a gate's floor lies in [0, 1), not at {floor:g}")
    return floor + (1 - floor) * torch.sigmoid(x)


def floor_at(
    done: float, steps: int, points: Points, span: float, shape: FloorShape = "stairs"
) -> float:
    """The floor after some steps of a run.

    Args:
        done: Steps made.
        steps: Steps of the whole run.
        points: (step, floor) with rising steps, the first at 0: that floor holds from there on.
        span: A run of fewer steps takes the points at the same shares of its own length.
        shape: ramp: straight lines between the points, level after the last.
    """
    at = done * max(1.0, span / steps)
    starts, floors = zip(*points, strict=True)
    if shape == "ramp":
        return float(np.interp(at, starts, floors))
    return float(floors[max(0, bisect_right(starts, at) - 1)])


def effective_rank(matrices: Tensor) -> Tensor:
    """Participation ratio tr(G)^2 / tr(G^2) of the Gram matrix: [..., a, b] -> [...].

    (sum s^2)^2 / sum s^4 over the singular values s: r for r equal ones, 0 for a zero matrix.
    """
    largest = matrices.abs().amax((-2, -1), keepdim=True).clamp_min(_tiny(matrices))
    unit = matrices / largest  # fourth powers of raw entries would leave float32
    small = unit if unit.shape[-2] <= unit.shape[-1] else unit.mT
    gram = small @ small.mT
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace.square() / gram.square().sum((-2, -1)).clamp_min(_tiny(gram))


def entropy_rank(matrices: Tensor) -> Tensor:
    """Exact: e to the entropy of the singular values' shares (Roy and Vetterli, 2007)."""
    values: Tensor = torch.linalg.svdvals(matrices)
    shares = values / values.sum(-1, keepdim=True).clamp_min(_tiny(values))
    entropy: Tensor = torch.special.entr(shares).sum(-1)
    return entropy.exp() * (values.sum(-1) > 0)


@dataclass(frozen=True)
class LayerView:
    """What one layer shows of a step.

    Attributes:
        memory: The matrices of its memory after the step, [B, H, rows, columns] each.
        before: The same before the step.
        momentum: The learner's S.
        retention: What each token kept, 1 - alpha, any shape.
        gates: Any named gates, any shape.
        floors: The floor of a gate that has one, by its name.
    """

    memory: Sequence[Tensor]
    before: Sequence[Tensor]
    momentum: Sequence[Tensor]
    retention: Tensor
    gates: Mapping[str, Tensor] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)


@torch.no_grad()
def observe(layers: Mapping[str, LayerView]) -> dict[str, float]:
    """Numbers of every layer, keyed "layer/measure".

    M_norm, M_std, M_max, rank, S_norm, update (norm of the change), retention (mean, low: the
    smallest), gate.NAME.mean, .spread (standard deviation), and .above_floor (how far the lowest
    value is from the floor). Of the memory's share also .risk (1 - what its mean uses of the room
    above the floor: 1 is a memory that is shut out as far as it can be) and .dead (share of its
    channels, means over tokens, that use less than DEAD of that room). Norms are those of all
    matrices of a head together, averaged over sequences and heads.
    """
    found = {
        f"{name}/{measure}": value
        for name, view in layers.items()
        for measure, value in {**_of_memory(view), **_of_gates(view)}.items()
    }
    if not found:
        return {}
    numbers: list[float] = torch.stack([v.to(torch.float32) for v in found.values()]).tolist()
    return dict(zip(found, numbers, strict=True))


def _of_memory(view: LayerView) -> dict[str, Tensor]:
    entries = _entries(view.memory)
    moved = [after - before for after, before in zip(view.memory, view.before, strict=True)]
    ranks = torch.stack([effective_rank(m.to(torch.float32)).mean() for m in view.memory])
    return {
        "M_norm": _norm(view.memory),
        "M_std": entries.std(unbiased=False),
        "M_max": entries.abs().max(),
        "rank": ranks.mean(),
        "S_norm": _norm(view.momentum),
        "update": _norm(moved),
        "retention": view.retention.to(torch.float32).mean(),
        "retention.low": view.retention.min(),
    }


def _of_gates(view: LayerView) -> dict[str, Tensor]:
    found = {}
    for name, values in view.gates.items():
        gate = values.to(torch.float32)
        found[f"gate.{name}.mean"] = gate.mean()
        found[f"gate.{name}.spread"] = gate.std(unbiased=False)
        if name in view.floors:
            found[f"gate.{name}.above_floor"] = gate.min() - view.floors[name]
        if name == SHARE:
            floor = view.floors.get(name, 0.0)
            used = (gate.flatten(0, -2).mean(0) - floor) / (1 - floor)  # by channel
            found[f"gate.{name}.risk"] = 1 - used.mean()
            found[f"gate.{name}.dead"] = (used < DEAD).to(torch.float32).mean()
    return found


def _norm(matrices: Sequence[Tensor]) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(_entries(matrices), dim=-1)
    return norms.mean()


def _entries(matrices: Sequence[Tensor]) -> Tensor:
    """All entries of a head in a row, in float32 whatever the model computes in."""
    return torch.cat([m.flatten(-2) for m in matrices], -1).to(torch.float32)


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny
