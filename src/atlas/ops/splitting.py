"""Where to divide a model between a device and a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
