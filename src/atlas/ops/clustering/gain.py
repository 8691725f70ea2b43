"""Would the members of a part learn more from their own part than from everybody?

A split may be real and yet of no use: five clients of one task with a genre each do differ, and
left alone they would have nobody to learn from. What a client stands to gain from some others is,
to first order, the inner product of its gradient with theirs: by so much its loss falls if it takes
a step along their mean. A split is useful if its members gain more from the others of their part
than from the others of the whole:

    gain_i = <h_i, mean of y_j over the others in i's part> - <h_i, the same over the whole>

h_i is taken from one half of client i's data; the parts are found, and the y_j taken, in the other
half of everybody's. If clients differ by chance alone, h_i knows nothing of the parts, and the
gains add up to nothing on average: over parts of two or more, means of the others weigh every
client alike. Whoever is alone in its part gains nothing there and loses what the whole would give.

The error is resampled from folds: h_i is a sum over folds of different examples, so the gain of
each fold is a draw of its own, and leaving out one fold at a time (the jackknife) gives the error
of their sum. Both halves take either role; as the two answers share their data, their errors are
averaged as if they were one.

How much of what tells a client from the whole its part shares is told beside it: the same gain, as
a share of what the client would gain from its own other half. Lumps share nearly all of it. Parts
of a cloud, in which everybody differs in a way of its own, share next to nothing, though with data
enough even that is more than chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from atlas.ops.clustering.clusters import Floats, Labels
from atlas.ops.clustering.stability import LEVEL

SHARED = 0.5
"""Parts whose members share this much of what is theirs are lumps and no pieces of a cloud."""


@dataclass(frozen=True)
class Gain:
    """What members gain by a split.

    Attributes:
        mean: Over clients.
        error: Its standard error.
        freedom: Degrees of freedom of that error.
        most: What they would gain from their own other half, over the same base.
    """

    mean: float
    error: float
    freedom: int
    most: float = 0.0

    @property
    def shared(self) -> float:
        """The share of what tells members from the whole that their part has in common."""
        return self.mean / self.most if self.most > 0 else float(self.mean > 0)

    def needed(self, level: float) -> float:
        """What the mean has to exceed to be above nothing by more than chance (Student's t)."""
        return self.error * float(scipy.special.stdtrit(self.freedom, 1.0 - level))


def others_shares(labels: Sequence[int]) -> Floats:
    """What each of the others in one's part counts [n, n]; nothing where there are none."""
    own = np.asarray(labels)
    same = (own[:, None] == own).astype(np.float64)
    np.fill_diagonal(same, 0.0)
    shares: Floats = same / np.maximum(same.sum(1, keepdims=True), 1.0)
    return shares


def held_out_products(folds: Floats) -> tuple[Floats, Floats]:
    """Inner products of clients' held-out folds with everybody's other half.

    Args:
        folds: Gradients by client and fold [n, f, d].

    Returns:
        [n, folds held out, n] with the odd folds held out, and with the even ones: entry
        [i, fold, j] is the product of that fold of client i with the other half of client j.
    """
    odd, even = folds[:, 1::2], folds[:, ::2]
    return odd @ even.sum(1).T, even @ odd.sum(1).T


def fold_gains(products: Floats, labels: Sequence[int], base: Sequence[int]) -> Floats:
    """How much more each client's held-out folds gain from one partition than from another [n, f].

    Args:
        products: One of `held_out_products`.
        labels: The partition.
        base: The one it is held to; everybody together, usually.
    """
    shares = others_shares(labels) - others_shares(base)
    gains: Floats = (products * shares[:, None]).sum(2)
    return gains


def split_gain(
    products: tuple[Floats, Floats], found: tuple[Labels, Labels], base: tuple[Labels, Labels]
) -> Gain:
    """What is gained by a split that was found twice, each time where it is not judged.

    Args:
        products: Of `held_out_products`: odd folds held out, even folds held out.
        found: The partition found in the even half, and the one found in the odd half.
        base: Partitions of the same halves that it is held to.
    """
    means, errors, most, freedom = [], [], [], 0
    for own, labels, before in zip(products, found, base, strict=True):
        gains = fold_gains(own, labels, before)
        alone = np.eye(len(gains)) - others_shares(before)
        most.append((own * alone[:, None]).sum() / len(gains))
        n, count = gains.shape
        means.append(gains.sum() / n)
        # A client's gain is the sum over its folds: each left out in turn, the rest made up for it.
        spread = gains.var(1, ddof=1) if count > 1 else np.square(gains).sum(1)
        errors.append(float(np.sqrt(count * spread.sum())) / n)
        freedom = n * max(1, count - 1)
    return Gain(float(np.mean(means)), float(np.mean(errors)), freedom, float(np.mean(most)))


class Use(NamedTuple):
    """Whether members gain by a split.

    Attributes:
        useful: The verdict; None where nobody asked.
        gain: What they gain over the last coarser split of use.
        needed: What that has to exceed.
        shared: See `Gain.shared`.
    """

    useful: bool | None = None
    gain: float = 0.0
    needed: float = 0.0
    shared: float = 0.0

    @property
    def lumps(self) -> bool:
        """Whether members share so much that this is no cut through a cloud."""
        return self.shared >= SHARED


def useful_splits(
    folds: Floats, found: Sequence[tuple[Labels, Labels]], level: float = LEVEL
) -> list[Use]:
    """Which of some partitions, from coarse to fine, members gain by.

    A finer partition has to be better than the coarser ones that were useful, not just better than
    no split at all: what five tasks gain would otherwise pay for cutting one of them. Half of the
    level is spent on the coarsest, half of the rest on the next: sub-tasks are mostly few.

    Args:
        folds: Gradients by client and fold [n, f, d].
        found: Every partition as found in the even half and in the odd half.
        level: The chance that any of them is called useful where clients differ by chance.
    """
    products = held_out_products(folds)
    together: Labels = (0,) * len(folds)
    base, uses = (together, together), []
    for place, partition in enumerate(found, start=1):
        gain = split_gain(products, partition, base)
        needed = gain.needed(level / 2**place)
        useful = gain.mean > needed
        uses.append(Use(useful, gain.mean, needed, gain.shared))
        base = partition if useful else base
    return uses


def part_gains(folds: Floats, labels: Sequence[int]) -> dict[int, float]:
    """Mean gain over the whole of each part's members, by part; both halves take either role."""
    together = (0,) * len(labels)
    gains = sum(fold_gains(own, labels, together).sum(1) for own in held_out_products(folds)) / 2
    own = np.asarray(labels)
    return {int(part): float(gains[own == part].mean()) for part in np.unique(own)}


def part_affinities(folds: Floats, labels: Sequence[int]) -> Floats:
    """How far parts want the same [k, k], parts in rising order: cosines of their mean gradients.

    Products are taken between halves, so that noise, which no two halves share, neither lengthens a
    part's mean nor draws parts together. Opposite aims count nothing. Aims too faint to tell count
    nothing in most cases, and by chance something: two of pure noise are above 0 in one of eight.
    """
    own = np.asarray(labels)
    member = (own[:, None] == np.unique(own)).astype(np.float64)
    member /= member.sum(0)
    one, two = member.T @ folds[:, 1::2].sum(1), member.T @ folds[:, ::2].sum(1)
    products = (one @ two.T + two @ one.T) / 2
    lengths = np.sqrt(np.maximum(np.diag(products), 0.0))
    scale = np.outer(lengths, lengths)
    cosines = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    np.fill_diagonal(cosines, 1.0)
    found: Floats = cosines.clip(0.0, 1.0)
    return found
