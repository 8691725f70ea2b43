"""A signature: one vector per client and round, and what was done to it before it was sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from atlas.config.plan import RelevanceSettings
from atlas.ops.similarity import shortened
from atlas.ops.sketch import count_sketch
from atlas.runs.seeds import generator

SignatureKind = Literal["gradient", "representation"]
TALL = 8.0
"""Standard deviations by which the length of noise may exceed the root of its size."""


@dataclass(frozen=True)
class Signature:
    """One client's signature of one round.

    Attributes:
        values: As it is sent [width], float32.
        examples: Training examples, or anchor texts, that it was made from.
        norm: Its length before it was clipped.
        clip: Largest length allowed; None where nothing was clipped.
        noise: Standard deviation of the noise on every number.
    """

    values: Tensor
    examples: int
    norm: float
    clip: float | None = None
    noise: float = 0.0

    def facts(self) -> dict[str, float | None]:
        """All but the values, for the reply."""
        return {
            "examples": self.examples,
            "norm": self.norm,
            "clip": self.clip,
            "noise": self.noise,
        }


def signature_width(kind: SignatureKind, settings: RelevanceSettings) -> int:
    """How many numbers a signature has."""
    if kind == "gradient":
        return settings.sketch
    return settings.anchors * (settings.anchors + 1) // 2


def longest(kind: SignatureKind, settings: RelevanceSettings) -> float:
    """The largest length that an honest signature can have, up to rounding."""
    if kind == "representation":
        return 1.001
    spread = settings.noise * (math.sqrt(settings.sketch) + TALL)
    return 1.001 * settings.clip * (1.0 + spread)


def finish_gradient(
    gradient: Tensor, settings: RelevanceSettings, seed: int, number: int, client: str
) -> tuple[Tensor, float]:
    """A gradient as it is sent: sketched, clipped, noised.

    Everybody has the same sketch; the noise is each client's own in each round.

    Args:
        gradient: [d].
        settings: Size of the sketch, clip and noise.
        seed: Run seed.
        number: The round.
        client: Whose it is.

    Returns:
        [sketch] in float32, and the length of the sketch before it was clipped.
    """
    common = int(generator(seed, "signature", "sketch").integers(2**63))
    sketched = count_sketch(gradient.to(torch.float64), settings.sketch, common)
    values, length = shortened(sketched, settings.clip)
    drawn = generator(seed, "signature", number, client).standard_normal(settings.sketch)
    noise = torch.from_numpy(drawn).to(values) * (settings.noise * settings.clip)
    return (values + noise).to(torch.float32), length
