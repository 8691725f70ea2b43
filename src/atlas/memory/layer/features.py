"""Polynomial features of keys and queries: more to write to than d rows.

phi(x) holds every monomial of degree 0 .. p once, times the root of its multiplicity, so that

    phi(q) . phi(k) = sum over i of a_i (q . k)^i,    a_i = amplitude_i^2

from dimension C(d + p, p) instead of 1 + d + ... + d^p. With a_i = 1 / i!, where learning starts,
it is the Taylor polynomial of exp(q . k). Amplitudes on both sides keep a key that is read back in
the direction it was written in, and let a_i be learned without leaving the numbers allowed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations_with_replacement

import torch
from torch import Tensor
from torch.nn.functional import normalize


def initial_amplitudes(degree: int) -> Tensor:
    """Roots of 1 / i! for i = 0 .. p: [p + 1]."""
    return torch.tensor([1 / math.sqrt(math.factorial(i)) for i in range(degree + 1)])


def feature_size(d: int, degree: int) -> int:
    """Dimension of phi for vectors of dimension d."""
    return math.comb(d + degree, degree)


def features(x: Tensor, amplitudes: Tensor) -> Tensor:
    """The features phi(x) of queries: [..., d] -> [..., C(d + p, p)].

    Args:
        x: Vectors.
        amplitudes: One for each degree from 0 on, [p + 1].
    """
    parts = [amplitudes[0].expand(*x.shape[:-1], 1)]
    for degree in range(1, len(amplitudes)):
        factors, roots = _monomials(x.shape[-1], degree)
        product = x[..., factors[0].to(x.device)]
        for factor in factors[1:]:
            product = product * x[..., factor.to(x.device)]
        parts.append(product * (amplitudes[degree] * roots.to(x)))
    return torch.cat(parts, -1)


def unit_features(x: Tensor, amplitudes: Tensor) -> Tensor:
    """The features of keys, at length one: a longer key allows a smaller step only."""
    return normalize(features(x, amplitudes), dim=-1)


@lru_cache(maxsize=32)
def _monomials(d: int, degree: int) -> tuple[Tensor, Tensor]:
    """Factors [degree, D] of every monomial, and the root of how often it occurs [D]."""
    chosen = torch.tensor(list(combinations_with_replacement(range(d), degree)))
    counts = torch.nn.functional.one_hot(chosen, d).sum(1).to(torch.float64)
    orders = torch.lgamma(counts + 1).sum(1)
    roots = ((math.lgamma(degree + 1) - orders) / 2).exp()
    return chosen.T, roots
