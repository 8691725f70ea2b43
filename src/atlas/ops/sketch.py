"""Fingerprints made small: a seeded linear sketch, principal components, unit rows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHUNK = 1 << 20
"""Coordinates hashed at a time, so that ten million entries need no tables of that length."""

CACHED = 64
"""Chunks whose hashes are kept, 5 MB each."""

LOW_BITS = np.uint64(2**63 - 1)

FLAT = 1e-12
"""Features that differ by less than this share of their size differ by rounding only."""


def count_sketch(values: Tensor, width: int, rng_seed: int) -> Tensor:
    """Hash every coordinate to one of `width` buckets with a random sign, and add up.

    Linear, and right on average: E<sketch(a), sketch(b)> = <a, b> over seeds, with a variance of
    at most (|a|^2 |b|^2 + <a, b>^2) / width. Bucket and sign come from a hash of (coordinate,
    seed), not from a generator's state: every client has the same map without sending it, on
    every platform, whatever the chunk size. Sums are float64.

    Args:
        values: [d].
        width: Buckets.
        rng_seed: Clients that are to be compared share it.

    Returns:
        [width] on the same device, float64 if `values` are, else float32.
    """
    if values.dim() != 1:
        raise ValueError(f"a sketch takes one vector, not a shape of {tuple(values.shape)}")
    if width < 1:
        raise ValueError(f"a sketch has at least one bucket, not {width}")
    total = torch.zeros(width, dtype=torch.float64)
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK].detach().to("cpu", torch.float64)
        bucket, negative = _table(start, len(part), width, rng_seed)
        signed = torch.where(negative, -part, part)
        total += torch.bincount(bucket, weights=signed, minlength=width)
    kept = torch.float64 if values.dtype == torch.float64 else torch.float32
    return total.to(values.device, kept)


@lru_cache(maxsize=CACHED)
def _table(start: int, count: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Bucket and whether the sign is negative, for a chunk of coordinates.

    Hashing costs more than adding up, and the same layers are sketched again and again.
    """
    hashed = _hash(start, count, seed)
    # The top bit is the sign; the 63 below it choose the bucket (bias below width / 2^63).
    bucket = ((hashed & LOW_BITS) % np.uint64(width)).astype(np.int32)
    return torch.from_numpy(bucket), torch.from_numpy((hashed >> np.uint64(63)).astype(bool))


def _hash(start: int, count: int, seed: int) -> NDArray[np.uint64]:
    """SplitMix64 of coordinates start..start+count-1, in the stream of `seed`."""
    index = np.arange(start, start + count, dtype=np.uint64)
    origin = _scramble(np.array([seed % 2**64], dtype=np.uint64))
    return _scramble(origin + index * np.uint64(0x9E3779B97F4A7C15))


def _scramble(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def pca(features: Tensor, dims: int) -> tuple[Tensor, float]:
    """Project centred rows on their first m = min(dims, n - 1, d) principal directions.

    The largest loading of each direction is positive, so the same rows give the same signs.
    Rows without variance (one row, or all alike) project to zero and lose nothing: explained 1.

    Args:
        features: [n, d], n >= 1.
        dims: Most dimensions to keep.

    Returns:
        Projected rows [n, m] in float64, and the share of the variance they keep.
    """
    if features.dim() != 2 or len(features) == 0:
        raise ValueError(f"features are [n, d] with n >= 1, not {tuple(features.shape)}")
    rows = features.detach().to(torch.float64)
    kept = max(0, min(dims, rows.shape[0] - 1, rows.shape[1]))
    centred = rows - rows.mean(0)
    if float(centred.norm()) <= FLAT * float(rows.norm()):
        return rows.new_zeros(rows.shape[0], kept), 1.0
    _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
    directions = directions[:kept]
    if kept:
        largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
        directions = torch.where(largest < 0, -directions, directions)
    variance = sizes.square()
    return centred @ directions.T, float(variance[:kept].sum() / variance.sum())
