"""Retention: what forgetting does to the weights (Miras, arXiv 2504.13173).

The memory accumulates in a dual A, which is linear whatever the retention:
A_t = a_t A_{t-1} + (1 - a_t) anchor + increment_t, the anchor being zero as published. The
retention says which weights are read from it, W = shape(A) * scale(A at the start of the chunk),
and what happens to A where a chunk ends.

- `l2`: W = A, the plain decay.
- `lq`: W = A / ||A||_q^(q-2), Moneta's; the norm is renewed at chunk ends.
- `kl`: W = mass * softmax(A), Memora's: softmax(a log W - step) has logs that are linear but for a
  shift, which the softmax ignores. So the logs are the state and W is exact at every token.
- `elastic_net`: W = A, and a soft threshold at chunk ends, which sets small entries to zero.

Norms and softmaxes are per matrix of the memory, per sequence and head.

Local and global retention together are one forgetting gate and one step:
`rules.rule.join_retentions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]


def _unchanged(dual: Tensor, chunk: int) -> Tensor:
    del chunk
    return dual


def _one(start: Tensor) -> Tensor:
    return start.new_ones(())


@dataclass(frozen=True)
class Retention:
    """How weights are read from the dual [..., rows, columns].

    Attributes:
        shape: The part of the map that is not linear in the current dual, or None.
        scale: A factor [..., 1, 1] that holds for a whole chunk, from the dual at its start.
        close: (dual, chunk size) -> the dual that the next chunk starts from.
    """

    shape: Map | None = None
    scale: Map = _one
    close: Callable[[Tensor, int], Tensor] = _unchanged

    def weights(self, dual: Tensor, start: Tensor) -> Tensor:
        """What the memory's function sees: shape(dual) * scale(start)."""
        return (dual if self.shape is None else self.shape(dual)) * self.scale(start)


def l2() -> Retention:
    """Decay alone."""
    return Retention()


def lq(q: float = 4.0, floor: float = 1.0) -> Retention:
    """W = A / ||A||_q^(q-2), so ||W||_q = ||A||_q^(3-q): a cap on the weights as soon as q > 3.

    Args:
        q: At least two; two is plain decay, four is Moneta's.
        floor: The smallest norm that divides; below it W is linear in A. Without one, a memory
            that forgets (A -> 0) would have weights that grow without bound if q exceeds three.
    """
    if q < 2 or floor <= 0:
        raise ValueError(f"lq retention needs q >= 2 and a positive floor, not {q:g}, {floor:g}")

    def scale(start: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(start, ord=q, dim=(-2, -1), keepdim=True)
        return norm.clamp_min(floor).pow(2 - q)

    return Retention(scale=scale)


def kl(mass: float = 1.0) -> Retention:
    """Every output's weights over the inputs stay a distribution, with logs as the dual.

    Args:
        mass: What the weights of an output sum to; one is Memora's.
    """
    if mass <= 0:
        raise ValueError(f"the mass of kl retention is positive, not {mass:g}")

    def shape(dual: Tensor) -> Tensor:
        return torch.softmax(dual, dim=-2)

    def scale(start: Tensor) -> Tensor:
        return start.new_full((), mass)

    def close(dual: Tensor, chunk: int) -> Tensor:
        del chunk
        # The same weights; without it the shift that softmax ignores would pile up.
        return torch.log_softmax(dual, dim=-2)

    return Retention(shape, scale, close)


def elastic_net(gamma: float = 1e-3) -> Retention:
    """Soft threshold of `gamma` per token, applied as gamma * chunk where a chunk ends.

    For entries that keep their sign this is what thresholds at every token sum to, decay aside.
    """
    if gamma < 0:
        raise ValueError(f"a soft threshold is not negative: {gamma:g}")

    def close(dual: Tensor, chunk: int) -> Tensor:
        return torch.nn.functional.softshrink(dual, gamma * chunk)

    return Retention(close=close)


RETENTIONS: dict[str, Callable[..., Retention]] = {
    "l2": l2,
    "lq": lq,
    "kl": kl,
    "elastic_net": elastic_net,
}
