"""Fingerprints of many clients made comparable, some clients at a time.

The same features as `compare.compare_prints` gives, from sums over clients alone: sketches are read
twice (once to add up, once to project) and never held together. Halves and resamples, by which
splits are judged, are left to a sample of the clients (`clusters_sampled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import scipy
import torch
from torch import Tensor

from atlas.federation.fingerprints.compare import (
    PartFacts,
    Prints,
    judge_part,
    placed,
    scale_folds,
)
from atlas.ops.graph.affinity import unit_rows

CLIENTS_AT_ONCE = 256
"""Clients read at a time."""

ROUNDING = 1e-14
"""Sums of squares that cancel leave this share of themselves."""

ReadSketches = Callable[[slice | Sequence[int]], Mapping[str, Tensor]]
"""Sketches of some clients by part, [k, folds, width]."""


@dataclass
class Sums:
    """What has been added up over clients, for the odd and even folds of all parts side by side.

    Attributes:
        count: Clients.
        odd: Sum of the odd folds [d], float64.
        even: Sum of the even folds [d].
        products: Of both, and squares of each, coordinate by coordinate [3, d].
        second: Sum of outer products of whole fingerprints [d, d].
    """

    count: int
    odd: Tensor
    even: Tensor
    products: Tensor
    second: Tensor

    def add(self, odd: Tensor, even: Tensor) -> None:
        """Take in some clients' halves [k, d]."""
        whole = odd + even
        self.count += len(whole)
        self.odd += odd.sum(0)
        self.even += even.sum(0)
        self.products += torch.stack(
            [(odd * even).sum(0), odd.square().sum(0), even.square().sum(0)]
        )
        self.second += whole.T @ whole

    def covariance(self) -> Tensor:
        """Sum of outer products of centred fingerprints [d, d]."""
        total = self.odd + self.even
        return self.second - torch.outer(total, total) / self.count

    def facts(self, part: slice) -> PartFacts:
        """How far a part's differences between clients can be trusted."""
        odd, even = self.odd[part], self.even[part]
        means = torch.stack([odd * even, odd.square(), even.square()]).sum(1) / self.count
        agree, one, two = (self.products[:, part].sum(1) - means).tolist()
        half = agree / (one * two) ** 0.5 if one > 0 and two > 0 else 0.0
        whole = torch.diagonal(self.second)[part]
        left = float((whole - (odd + even).square() / self.count).sum())
        alike = left <= ROUNDING * float(whole.sum())
        return judge_part(half, 0.0 if alike else (left / self.count) ** 0.5)


def compare_many(
    clients: Sequence[str], read: ReadSketches, names: Sequence[str], dims: int
) -> Prints:
    """Make the fingerprints of many clients comparable.

    Args:
        clients: Ids.
        read: Gives sketches of the clients from one position to another.
        names: The parts compared.
        dims: Most principal components.
    """
    n = len(clients)
    sums, parts = _add_up(n, read, names)
    facts = {name: sums.facts(part) for name, part in parts.items()}
    scale = torch.zeros_like(sums.odd)
    for name, part in parts.items():
        scale[part] = facts[name].scale
    spread = scale[:, None] * sums.covariance() * scale
    directions, explained = _principal(spread, min(dims, n - 1))
    mean, turn = (sums.odd + sums.even) / n, scale[:, None] * directions
    features = torch.cat([(odd + even - mean) @ turn for odd, even in _halves(n, read, names)])
    return Prints(tuple(clients), placed(unit_rows(features)), explained, facts, (), ())


def _add_up(n: int, read: ReadSketches, names: Sequence[str]) -> tuple[Sums, dict[str, slice]]:
    first = read(slice(0, 1))
    parts, start = {}, 0
    for name in names:
        parts[name] = slice(start, start + first[name].shape[-1])
        start = parts[name].stop
    device = first[names[0]].device
    empty = [
        torch.zeros(*size, dtype=torch.float64, device=device)
        for size in ((start,), (start,), (3, start), (start, start))
    ]
    sums = Sums(0, *empty)
    for odd, even in _halves(n, read, names):
        sums.add(odd, even)
    return sums, parts


def _halves(n: int, read: ReadSketches, names: Sequence[str]) -> Iterator[tuple[Tensor, Tensor]]:
    """Sums over odd and over even folds, some clients at a time, all parts side by side [k, d]."""
    for start in range(0, n, CLIENTS_AT_ONCE):
        sent = read(slice(start, min(n, start + CLIENTS_AT_ONCE)))
        folds = [scale_folds(sent[name]) for name in names]
        yield (
            torch.cat([part[:, 1::2].sum(1) for part in folds], dim=1),
            torch.cat([part[:, ::2].sum(1) for part in folds], dim=1),
        )


def _principal(spread: Tensor, dims: int) -> tuple[Tensor, float]:
    """The first principal directions [d, m] of a covariance, signed as `ops.sketch.pca` does.

    Returns:
        The directions, and the share of the variance they keep.
    """
    size = len(spread)
    kept = max(0, min(dims, size))
    total = float(torch.diagonal(spread).sum())
    if kept == 0 or total <= 0:
        return spread.new_zeros(size, kept), 1.0
    wanted = (size - kept, size - 1)
    values, vectors = scipy.linalg.eigh(
        spread.cpu().numpy(), subset_by_index=wanted, check_finite=False
    )
    directions = torch.from_numpy(vectors[:, ::-1].copy()).to(spread.device)
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return torch.where(largest < 0, -directions, directions), float(values.sum()) / total
