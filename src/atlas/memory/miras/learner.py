"""Learners: how gradients g_t become increments of the memory.

Each is a token step, which defines it, and the same unrolled over n tokens:
S_t = fade_t S_0 - sum over j of trace[t, j] g_j, increment_t = weight_t * shape(S_t).

- `descent`: S_t = -theta_t g_t, added as it is.
- `momentum`: S_t = eta_t S_{t-1} - theta_t g_t, added with weight 1 - eta_t: an impulse written
  at low eta and carried by a later eta near one would otherwise let the memory diverge.
- `newton_schulz`: S_t = eta_t S_{t-1} - g_t, made semi-orthogonal, added with weight theta_t
  (ATLAS, arXiv 2505.23735).

Both take other weightings (`rules.rule.damp`), by the names that rules have for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.config.rule import Weighting
from atlas.memory.rules.rule import damp
from atlas.ops.newton_schulz import newton_schulz as semi_orthogonal


class Unrolled(NamedTuple):
    """A learner over n tokens: trace [..., n, n], fade and weight [..., n]."""

    trace: Tensor
    fade: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Learner:
    """One way to learn; gates are eta (momentum) and theta (step).

    Attributes:
        step: (S, g, eta, theta) -> (new S, increment), one token, gates that broadcast.
        unroll: (eta, theta) [..., n] -> the same over n tokens.
        shape: What is not linear in S, or None.
    """

    step: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    unroll: Callable[[Tensor, Tensor], Unrolled]
    shape: Callable[[Tensor], Tensor] | None = None


def decay_matrix(logs: Tensor) -> Tensor:
    """exp(logs_{i+1} + ... + logs_t) for i <= t, else zero: [..., n] -> [..., n, n].

    Only differences are exponentiated, and only where i <= t, so that no factor exceeds one.
    """
    total = logs.cumsum(-1)
    past = torch.ones(logs.shape[-1], logs.shape[-1], dtype=torch.bool, device=logs.device).tril()
    between = total[..., :, None] - total[..., None, :]
    return between.masked_fill(~past, float("-inf")).exp()


def descent() -> Learner:
    """Plain gradient descent; eta is not used."""

    def step(s: Tensor, g: Tensor, eta: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        del s, eta
        return -theta * g, -theta * g

    def unroll(eta: Tensor, theta: Tensor) -> Unrolled:
        del eta
        return Unrolled(torch.diag_embed(theta), torch.zeros_like(theta), torch.ones_like(theta))

    return Learner(step, unroll)


def momentum(weighting: Weighting = "added") -> Learner:
    """Descent with momentum, weighted where it is added."""

    def step(s: Tensor, g: Tensor, eta: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        written, added = damp(eta, theta, weighting)
        s = eta * s - written * g
        return s, added * s

    def unroll(eta: Tensor, theta: Tensor) -> Unrolled:
        logs = eta.log()
        written, added = damp(eta, theta, weighting)
        trace = decay_matrix(logs) * written[..., None, :]
        return Unrolled(trace, logs.cumsum(-1).exp(), added)

    return Learner(step, unroll)


def newton_schulz(steps: int = 5, weighting: Weighting = "none") -> Learner:
    """Momentum, orthogonalised; the size of a step is theta whatever the gradients' size."""

    def shape(s: Tensor) -> Tensor:
        return semi_orthogonal(s, steps)

    def weight(eta: Tensor, theta: Tensor) -> Tensor:
        written, added = damp(eta, theta, weighting)
        return written * added

    def step(s: Tensor, g: Tensor, eta: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        s = eta * s - g
        return s, weight(eta, theta) * shape(s)

    def unroll(eta: Tensor, theta: Tensor) -> Unrolled:
        logs = eta.log()
        return Unrolled(decay_matrix(logs), logs.cumsum(-1).exp(), weight(eta, theta))

    return Learner(step, unroll, shape)


LEARNERS: dict[str, Callable[..., Learner]] = {
    "descent": descent,
    "momentum": momentum,
    "newton_schulz": newton_schulz,
}
