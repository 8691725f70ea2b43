"""What fits: ranks within a budget, and where to divide a model between a device and a server.

Ranks maximise the sum over layers of importance * log2(1 + rank). A layer of rank r costs r times
its unit; every layer has at least the smallest rank allowed.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_SEARCH = 2_000_000
"""Plans that the exhaustive solver is willing to look at."""


def worth(importance: Sequence[float], ranks: Sequence[int]) -> float:
    """The objective."""
    return sum(i * math.log2(1 + r) for i, r in zip(importance, ranks, strict=True))


def cost(units: Sequence[float], ranks: Sequence[int]) -> float:
    """What ranks take of the budget."""
    return sum(u * r for u, r in zip(units, ranks, strict=True))


def greedy_ranks(
    importance: Sequence[float], units: Sequence[float], budget: float, choices: Sequence[int]
) -> tuple[int, ...]:
    """Raise the layer that gains most per byte, step by step; then exchange what pays.

    The gain of a layer's next step, per byte, only falls, so the order by that gain is the best
    until the first step that no longer fits. What is lost there, exchanges largely win back.

    Args:
        importance: Of each layer, not negative.
        units: Cost of one rank in each layer, positive.
        budget: At least the cost of the smallest choice everywhere.
        choices: Allowed ranks, rising.
    """
    _check_floor(units, budget, choices)
    steps = [0] * len(units)
    left = budget - cost(units, [choices[0]] * len(units))
    queue = [_next_step(importance, units, choices, layer, 0) for layer in range(len(units))]
    heapq.heapify(queue)
    while queue:
        _, price, layer = heapq.heappop(queue)
        if not math.isfinite(price) or price > left:
            # Later steps of this layer cost more still; other layers may have cheaper ones.
            continue
        left -= price
        steps[layer] += 1
        heapq.heappush(queue, _next_step(importance, units, choices, layer, steps[layer]))
    return _exchanged(importance, units, budget, choices, [choices[step] for step in steps])


def _exchanged(
    importance: Sequence[float],
    units: Sequence[float],
    budget: float,
    choices: Sequence[int],
    ranks: list[int],
) -> tuple[int, ...]:
    """Give two layers other ranks as long as the best such change is worth anything."""
    pairs = list(itertools.combinations(range(len(ranks)), 2))
    while True:
        spare = budget - cost(units, ranks)
        changes = [
            [(u * (r - own), i * math.log2((1 + r) / (1 + own)), r) for r in choices]
            for u, i, own in zip(units, importance, ranks, strict=True)
        ]
        best, gain = None, 1e-12 * worth(importance, ranks)
        for one, two in pairs:
            for (price, more, r), (other, less, s) in itertools.product(changes[one], changes[two]):
                if price + other <= spare and more + less > gain:
                    best, gain = ((one, r), (two, s)), more + less
        if best is None:
            return tuple(ranks)
        for layer, rank in best:
            ranks[layer] = rank


def _next_step(
    importance: Sequence[float],
    units: Sequence[float],
    choices: Sequence[int],
    layer: int,
    step: int,
) -> tuple[float, float, int]:
    """(minus gain per byte, price, layer) of raising a layer; an endless price at the top."""
    if step + 1 == len(choices):
        return 0.0, math.inf, layer
    price = (choices[step + 1] - choices[step]) * units[layer]
    gain = importance[layer] * math.log2((1 + choices[step + 1]) / (1 + choices[step]))
    return -gain / price, price, layer


def exhaustive_ranks(
    importance: Sequence[float], units: Sequence[float], budget: float, choices: Sequence[int]
) -> tuple[int, ...]:
    """The best plan of all; the yardstick of the greedy one, for few layers only.

    Raises:
        ValueError: If there are too many plans to look at.
    """
    _check_floor(units, budget, choices)
    plans = len(choices) ** len(units)
    if plans > LARGEST_SEARCH:
        raise ValueError(f"{plans} plans are too many to try; allowed: {LARGEST_SEARCH}")
    fitting = (
        plan
        for plan in itertools.product(choices, repeat=len(units))
        if cost(units, plan) <= budget
    )
    return max(fitting, key=lambda plan: worth(importance, plan))


def uniform_ranks(
    importance: Sequence[float], units: Sequence[float], budget: float, choices: Sequence[int]
) -> tuple[int, ...]:
    """The largest rank that every layer can have; importance does not count."""
    del importance
    _check_floor(units, budget, choices)
    best = max(r for r in choices if cost(units, [r] * len(units)) <= budget)
    return (best,) * len(units)


SOLVERS = {"importance": greedy_ranks, "exhaustive": exhaustive_ranks, "uniform": uniform_ranks}


def _check_floor(units: Sequence[float], budget: float, choices: Sequence[int]) -> None:
    floor = cost(units, [choices[0]] * len(units))
    if floor > budget:
        raise ValueError(f"the smallest ranks cost {floor:g}, the budget is {budget:g}")


def layer_importance(norms: Sequence[float], depths: Sequence[float], slope: float) -> list[float]:
    """Importance of layers, mean one before depth counts.

    Args:
        norms: Length of the loss gradient of each layer.
        depths: Where each layer sits: 0 at the bottom, 1 at the top.
        slope: How much more the top counts than the bottom.
    """
    mean = sum(norms) / len(norms)
    shares = [norm / mean if mean > 0 else 1.0 for norm in norms]
    return [share * (1 + slope * depth) for share, depth in zip(shares, depths, strict=True)]


def cluster_complexity(
    features: Tensor, labels: Sequence[int], norms: Sequence[float]
) -> dict[int, float]:
    """How hard each cluster is, the hardest at one.

    Variance of the fingerprints inside the cluster times its clients' mean gradient norm: a
    cluster whose clients differ much, and whose losses still have far to fall, needs more ranks.
    Squared distances from the mean are divided by one less than there are clients: divided by all,
    small clusters would look easier than large ones of the same kind.
    A client alone differs from nobody, which says nothing of its task: the mean variance of the
    clusters with several members stands in, so that its own gradient decides. Where all clients
    are alone, gradients alone count.

    Args:
        features: Fingerprints [n, d].
        labels: Cluster of each.
        norms: Gradient norm of each.
    """
    variance: dict[int, float] = {}
    gradient: dict[int, float] = {}
    alone = {label for label in labels if list(labels).count(label) == 1}
    for label in sorted(set(labels)):
        rows = torch.tensor([i for i, own in enumerate(labels) if own == label])
        own = features[rows.to(features.device)].to(torch.float64)
        variance[label] = float((own - own.mean(0)).square().sum()) / max(1, len(own) - 1)
        gradient[label] = sum(norms[i] for i in rows.tolist()) / len(rows)
    shared = [value for label, value in variance.items() if label not in alone]
    usual = sum(shared) / len(shared) if shared else 1.0
    found = {
        label: (usual if label in alone else variance[label]) * gradient[label]
        for label in variance
    }
    largest = max(found.values())
    return {label: value / largest if largest > 0 else 1.0 for label, value in found.items()}


@dataclass(frozen=True)
class Division:
    """One way to divide a model of `depth` blocks.

    Attributes:
        point: Blocks on the device; `depth` for an undivided model.
        memory: Share of the device's budget that it takes at the least; above one it does not fit.
        traffic: Tensors of activations a step moves: up and down 2, up alone 1, none 0.
        importance: Share of what matters that is trained on the device.
    """

    point: int
    memory: float
    traffic: int
    importance: float


def choose_division(
    divisions: Sequence[Division], depth: int, weights: Mapping[str, float]
) -> Division | None:
    """The fitting division of the highest score; None if nothing fits.

    Score = importance + balance - memory - traffic, each in [0, 1] and weighted. Balance is one
    where both sides run as many blocks and zero where one side runs all. Ties go to the larger
    part on the device, which leaves less to others.
    """
    fitting = [division for division in divisions if division.memory <= 1.0]
    return max(fitting, key=lambda d: (_score(d, depth, weights), d.point), default=None)


def _score(division: Division, depth: int, weights: Mapping[str, float]) -> float:
    balance = 1 - abs(2 * division.point / depth - 1)
    return (
        weights["importance"] * division.importance
        + weights["balance"] * balance
        - weights["memory"] * division.memory
        - weights["traffic"] * division.traffic / 2
    )
