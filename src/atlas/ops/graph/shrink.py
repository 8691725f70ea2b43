"""How much of its own a client should keep: the noise of what it learned against real differences.

If what a client aims at lies D (a squared distance) from the mean of what its neighbours aim at,
and noise moves the client and that mean apart by N, the best guess keeps the share

    c = D / (N + D)

of the client's deviation from that mean (James and Stein's shrinkage, D and N estimated from the
data). It is a client's own: between two that differ, a third may lie in their middle and keep
nothing. That is the share to be left *in the end*. Training covers only a share rho of the way to a
client's own aim in a round, and mixing leaves a share s of the deviation in every one of them, so
that deviations end at s rho / (1 - s (1 - rho)) of the full one. It is c for

    s = c / (rho + c (1 - rho)).

Nothing here needs the adapters: noise comes from halves of clients' batches, N + D is the squared
distance between a client and its neighbours' mean, and rho follows from how that grows over rounds.
From a common start a round of training takes a client `new` away from the others' mean; where it
starts `start` away, it ends

    spread = new + (1 - rho) start

away. Noise grows by the same rule, as the same examples come back in every round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

START_RHO, START_WEIGHT = 0.5, 0.25
"""The share of its way that a round covers while nothing is known, and what that counts beside a
round in which clients started as far apart as a round takes them."""
LEAST_RHO, MOST_RHO = 0.05, 0.95
"""Where a round covers less, what a client does in a run's rounds is not yet its way; and the last
bit of it is never told from all."""


def step_share(c: float, rho: float) -> float:
    """The share of its deviation a client keeps in each round so that `c` of it is left at last."""
    below = rho + c * (1.0 - rho)
    return c / below if below > 0 else 0.0


def final_share(s: float, rho: float) -> float:
    """What is left at last of a deviation of which each round's mixing keeps `s`."""
    below = 1.0 - s * (1.0 - rho)
    return s * rho / below if below > 0 else 1.0


@dataclass(frozen=True)
class Deviation:
    """What is remembered of one client between rounds; lengths, not squares, unless said.

    Attributes:
        data: Noise of the pulls it was trained by (see `left_of_pulls`), as far as it is its
            examples': it comes back.
        fresh: Noise of them as far as it is the round's draw among its examples.
        spread: How far it was from its neighbours' mean when last compared.
        kept: The share of its deviation that it started the next round with.
        first: The spread at the first comparison, and the noise of that round.
        cross: Sum over rounds of start times (spread - new), each in units of new.
        square: Sum of squared starts in these units.
        explained: The variance of pulls, its own and what is left of its neighbours' in their mean,
            in units of the squared spread.
        lasting: The same of the part that is the examples' and comes back.
        seen: What the rounds of which these two are means count together. A round counts by how
            much of the spread is its own: what clients kept of earlier ones was seen before, and
            its noise is known by `rho` alone.
    """

    data: float = 0.0
    fresh: float = 0.0
    spread: float = 0.0
    kept: float = 0.0
    first: tuple[float, float] | None = None
    cross: float = START_WEIGHT * (1.0 - START_RHO)
    square: float = START_WEIGHT
    explained: float = 0.0
    lasting: float = 0.0
    seen: float = 0.0

    @property
    def rho(self) -> float:
        """The share of its way that a round of training covers."""
        return min(MOST_RHO, max(LEAST_RHO, 1.0 - self.cross / self.square))

    @property
    def c(self) -> float:
        """The share of its deviation to be left in the end; nothing while nothing is known."""
        return self.real / (self.real + self.noisy) if self.real > 0 else 0.0

    @property
    def real(self) -> float:
        """The share of the squared spread that noise does not explain, at least 0."""
        return max(0.0, 1.0 - left_of_pulls(self.rho) ** 2 * self.explained) if self.seen else 0.0

    @property
    def noisy(self) -> float:
        """The share of the squared spread that is the noise of the examples there are."""
        return left_of_pulls(self.rho) ** 2 * self.lasting

    @property
    def pulls(self) -> float:
        """Variance of all pulls that it was trained by."""
        return self.data**2 + self.fresh**2

    @property
    def share(self) -> float:
        """The share of its deviation to be kept in this round's mixing."""
        return step_share(self.c, self.rho)


def read_deviation(saved: Mapping[str, Any]) -> Deviation:
    """A deviation from its fields by name.

    Raises:
        TypeError: If a field is unknown.
        ValueError: If one is not what it should be.
    """
    first = saved.get("first")
    numbers = {name: value for name, value in saved.items() if name != "first"}
    for name, value in numbers.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name} of a deviation is {value!r}, not a finite number")
    both = None if first is None else (float(first[0]), float(first[1]))
    return Deviation(first=both, **numbers)


@dataclass(frozen=True)
class RoundNoise:
    """What halves of a client's batches say of its round.

    Attributes:
        variance: Of the pulls of the round's batches together, if they had been drawn afresh: a
            quarter of the squared distance of what the halves would have had.
        passes: How often the round went over the client's examples; less than 1 for a part.
    """

    variance: float
    passes: float


def left_of_pulls(rho: float) -> float:
    """What is left at a round's end of all pulls in it, if they cover a share `rho` of the way.

    Where one batch has pulled too far the next ones pull back. With many small steps toward x,
    pulls add up to -log(1 - rho) of the way, of which rho is covered.
    """
    return -rho / math.log1p(-rho)


def trained(before: Deviation, noise: RoundNoise) -> Deviation:
    """After a round of local training.

    In several passes halves of batches share examples, and differ by less than the data does: all
    passes together have the noise of one. Of a part of a pass the rest is drawn in other rounds.
    """
    stays = (1.0 - before.rho) * before.kept
    data = math.sqrt(noise.passes * noise.variance) + stays * before.data
    drawn = max(0.0, 1.0 - noise.passes) * noise.variance
    fresh = math.hypot(math.sqrt(drawn), stays * before.fresh)
    return replace(before, data=data, fresh=fresh)


@dataclass(frozen=True)
class Neighbour:
    """One of those a client learns from.

    Attributes:
        share: What it counts in their mean; all shares together are one.
        deviation: What is remembered of it, this round's training included.
    """

    share: float
    deviation: Deviation


def compared(
    own: Deviation, noise: RoundNoise, others: Sequence[Neighbour], square: float
) -> Deviation:
    """After a client was compared with its neighbours.

    Args:
        own: What is known of it, after `trained`.
        noise: Of its round.
        others: Its neighbours.
        square: Its squared distance from their mean, all as trained.
    """
    if square <= 0:
        return replace(own, spread=0.0)
    spread = math.sqrt(square)
    new = _new_spread(own, noise) or spread
    # A mean of many has little noise left: each counts by its share squared.
    pulls = own.pulls + sum(other.share**2 * other.deviation.pulls for other in others)
    data = own.data**2 + sum(other.share**2 * other.deviation.data**2 for other in others)
    counts = min(1.0, (new / spread) ** 2)
    seen = own.seen + counts
    found = replace(
        own,
        spread=spread,
        explained=own.explained + (pulls / square - own.explained) * counts / seen,
        lasting=own.lasting + (data / square - own.lasting) * counts / seen,
        seen=seen,
    )
    if own.first is None:
        return replace(found, first=(spread, noise.variance))
    return _regress(found, own, new, others)


def _new_spread(own: Deviation, noise: RoundNoise) -> float:
    """How far a round takes a client from the others' mean; 0 if that is not known yet."""
    if own.first is None:
        return 0.0
    spread, variance = own.first
    # Smaller steps than in the first round take clients less far apart, and have less noise.
    return spread * (math.sqrt(noise.variance / variance) if variance > 0 else 1.0)


def _regress(
    found: Deviation, before: Deviation, new: float, others: Sequence[Neighbour]
) -> Deviation:
    """Learn from a round how much of a start is left after it."""
    # An even step counts one's own like one of the others; what they kept moves their mean.
    q = sum(other.share**2 for other in others)
    kept = before.kept + q * sum(other.share * other.deviation.kept for other in others)
    start = kept / (1.0 + q) * before.spread / new
    grown = found.spread / new - 1.0
    return replace(found, cross=before.cross + start * grown, square=before.square + start * start)
