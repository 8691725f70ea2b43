"""Waves over residues: what a model that has found modular arithmetic is made of.

Such a model computes with cos and sin of 2 pi k a / n at a few frequencies k. Over a + b and
a - b the waves run over the residues themselves; over a * b and a / b they run over discrete
logarithms, since log(a * b) = log a + log b, and zero, which has none, is left out.

Letters in shapes: n residues in their order, d columns, K frequencies 1 to n // 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

TOP = 5
"""Frequencies that count as key ones, where nothing else is said."""
LOGARITHMIC = ("multiply", "divide")
DIFFERENCES = ("subtract", "divide")


def is_prime(number: int) -> bool:
    """Whether nothing but one and itself divides it."""
    return number > 1 and all(number % i for i in range(2, math.isqrt(number) + 1))


def primitive_root(p: int) -> int:
    """The smallest g whose powers are all residues of a prime p but zero."""
    factors = [q for q in range(2, p) if (p - 1) % q == 0 and is_prime(q)]
    return next(g for g in range(1, p) if all(pow(g, (p - 1) // q, p) != 1 for q in factors))


def discrete_logarithms(p: int) -> Tensor:
    """Logarithms of all residues [p] to the base of the primitive root; that of zero is -1."""
    logs = torch.full((p,), -1)
    logs[residue_order("multiply", p)] = torch.arange(p - 1)
    return logs


def residue_order(operation: str, p: int) -> Tensor:
    """Residues in the order in which an operation makes waves of them [n].

    Args:
        operation: add and subtract: 0 to p - 1; multiply and divide: 1, g, g^2, ... without zero.
        p: The prime.
    """
    if operation not in LOGARITHMIC:
        return torch.arange(p)
    g = primitive_root(p)
    return torch.tensor([pow(g, power, p) for power in range(p - 1)])


def spectrum(table: Tensor) -> Tensor:
    """Power of every frequency in every column [K, d], float64.

    Powers of a column add up to its squared distance from its mean: P_k is what the cos and the
    sin at k explain of it.

    Args:
        table: One row a residue, in the order of `residue_order` [n, d].
    """
    values = table.detach().double()
    values = values - values.mean(0)
    n = len(values)
    power: Tensor = torch.fft.rfft(values, dim=0)[1:].abs().square() * (2 / n)
    if n % 2 == 0:
        power[-1] /= 2  # the highest frequency of an even count has a cos alone
    return power


def neuron_share(table: Tensor) -> float:
    """Mean over columns of the strongest frequency's share, columns weighed by their power.

    The first measure of Fourier concentration: one if every neuron has one frequency.
    """
    power = spectrum(table)
    return _ratio(float(power.amax(0).sum()), float(power.sum()))


def top_share(power: Tensor, count: int = TOP) -> float:
    """Share of the `count` strongest frequencies; chance is about count / K.

    Args:
        power: Of the frequencies [K].
        count: How many.
    """
    return _ratio(float(power.topk(min(count, len(power))).values.sum()), float(power.sum()))


def gini(power: Tensor) -> float:
    """How unequal the powers [K] are: 0 all alike, (K - 1) / K one alone."""
    s = power.double().sort().values
    n = len(s)
    ranks = torch.arange(1, n + 1, dtype=torch.float64)
    total = float(s.sum())
    return 2 * float((ranks * s).sum()) / (n * total) - (n + 1) / n if total > 0 else 0.0


def key_frequencies(power: Tensor, count: int = TOP) -> list[int]:
    """The strongest frequencies, strongest first; they are counted from 1."""
    return [int(place) + 1 for place in power.topk(min(count, len(power))).indices]


@dataclass(frozen=True)
class CircularFit:
    """How far a table of residues is one circle.

    Attributes:
        frequency: How often the residues go round it.
        r_squared: Share of the table that the circle explains.
        isotropy: Its short axis by its long one. Near one even before anything is learned, so
            that it says nothing without `r_squared`.
    """

    frequency: int
    r_squared: float
    isotropy: float


def circular_fit(table: Tensor, frequency: int | None = None) -> CircularFit:
    """The circle at a frequency, the strongest one if none is named, of a table [n, d]."""
    power = spectrum(table).sum(1)
    k = key_frequencies(power, 1)[0] if frequency is None else frequency
    sizes = torch.linalg.svdvals(circle_axes(table, k))
    return CircularFit(
        frequency=k,
        r_squared=_ratio(float(power[k - 1]), float(power.sum())),
        isotropy=_ratio(float(sizes[1]), float(sizes[0])),
    )


def circle_axes(table: Tensor, frequency: int) -> Tensor:
    """Coefficients of cos and sin at a frequency in every column [2, d], float64."""
    values = table.detach().double()
    waves = _waves(len(values), frequency)
    return waves.T @ (values - values.mean(0)) * (2 / len(values))


def circle_points(table: Tensor, frequency: int) -> Tensor:
    """Where each residue lies in the plane of its circle at a frequency [n, 2]."""
    values = table.detach().double()
    # The plane, not the fit: what other frequencies put there blurs the circle, as it should.
    plane: Tensor = torch.linalg.qr(circle_axes(table, frequency).T).Q
    return torch.mm(values - values.mean(0), plane)


def excluded_logits(logits: Tensor, operation: str, frequencies: Sequence[int]) -> Tensor:
    """Logits of all pairs without what they owe to the key frequencies of the answer.

    Args:
        logits: [n, n, classes], both operands in the order of `residue_order`.
        operation: Waves run over the sum of the places, or over the difference.
        frequencies: The key ones.
    """
    return logits.double() - _wave_part(logits, operation, frequencies)


def restricted_logits(logits: Tensor, operation: str, frequencies: Sequence[int]) -> Tensor:
    """Nothing but what logits owe to the key frequencies, and their means over all pairs.

    Arguments as in `excluded_logits`.
    """
    return logits.double().mean((0, 1)) + _wave_part(logits, operation, frequencies)


def grid_loss(logits: Tensor, answers: Tensor, asked: Tensor) -> float:
    """Mean softmax loss of some pairs of the grid.

    Args:
        logits: [n, n, classes].
        answers: [n, n].
        asked: Which pairs [n, n] bool: those trained on for an excluded loss, all for a
            restricted one.
    """
    return float(cross_entropy(logits[asked].double(), answers[asked]))


def _wave_part(logits: Tensor, operation: str, frequencies: Sequence[int]) -> Tensor:
    """The projection on cos and sin of the places' sum (or difference), class by class."""
    values = logits.detach().double()
    n = len(values)
    places = torch.arange(n)
    sign = -1 if operation in DIFFERENCES else 1
    which = (places[:, None] + sign * places[None, :]) % n
    waves = torch.cat([_waves(n, k) for k in frequencies], dim=1)[which].flatten(0, 1)
    # The highest frequency of an even count has no sin; a column of zeros takes no part.
    waves = waves / waves.norm(dim=0).clamp_min(1e-9)
    return torch.mm(waves, waves.T @ values.flatten(0, 1)).reshape(values.shape)


def _waves(n: int, frequency: int) -> Tensor:
    """The cos and sin at a frequency [n, 2]; exactly zero where the sin has nothing to say."""
    angles = 2 * math.pi * frequency / n * torch.arange(n, dtype=torch.float64)
    sines = torch.zeros_like(angles) if 2 * frequency == n else angles.sin()
    return torch.stack([angles.cos(), sines], dim=1)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
