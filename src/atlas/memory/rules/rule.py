"""What a memory is given, and which rule it follows.

Row vectors: keys and queries [1, d_k], values [1, d_v]; memory M and momentum S [d_k, d_v]. For
token t, with the last c keys k_i and values v_i and their weights gamma:

    e_i = k_i M' - v_i
    S_t = eta_t S_{t-1} - (theta_t / c) * sum over i of gamma_{t,i} k_i^T e_i
    M_t = (1 - alpha_t) M_{t-1} + w_t S_t
    o_t = q_t M_t

c = 1 and w_t = 1 is Titans as printed (arXiv 2501.00663), c > 1 the Omega rule of ATLAS (arXiv
2505.23735), which has no division by c. Where S_t is made orthogonal, theta_t stands before it
instead: M_t = (1 - alpha_t) M_{t-1} + w_t theta_t NS(S_t). M', w_t and the division are what the
fields of `Rule` choose. It is declared with the other settings, in `config.rule`, so that a
settings file and a kernel mean the same by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.config.rule import Rule, Weighting

__all__ = ["Damped", "Rule", "Steps", "Tokens", "damp", "gates_of", "join_retentions", "settle"]


class Tokens(NamedTuple):
    """T tokens of H heads, gates per token and head.

    Attributes:
        queries: [B, H, T, d_k].
        keys: [B, H, T, d_k], of length one: the stability of every rule rests on it.
        values: [B, H, T, d_v].
        alpha: Forgetting in [0, 1], [B, H, T].
        eta: Momentum in [0, 1], [B, H, T].
        theta: Step, [B, H, T].
        gamma: Weights in [0, 1] of the window, the oldest token first, [B, H, T, c]; None is ones.
        delta: How long an error may be that counts in full (huber bias), [B, H, T].
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    alpha: Tensor
    eta: Tensor
    theta: Tensor
    gamma: Tensor | None = None
    delta: Tensor | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> Tokens:
        """The same change made to every part."""
        return Tokens._make(None if part is None else change(part) for part in self)

    def cut(self, start: int, stop: int) -> Tokens:
        """Tokens start to stop - 1."""
        return self.each(lambda part: part[:, :, start:stop])

    @property
    def length(self) -> int:
        """T."""
        return self.keys.shape[2]


class Steps(NamedTuple):
    """Gates made into the factors of the rule, all [B, H, T], gamma [B, H, T, c].

    S_t = carry_t S_{t-1} - step_t * gradient, M_t = keep_t M_{t-1} + added_t * S_t.
    """

    keep: Tensor
    carry: Tensor
    step: Tensor
    added: Tensor
    gamma: Tensor


class Damped(NamedTuple):
    """What weighting makes of a step: the factor of a gradient, and that of S where it is added."""

    step: Tensor
    added: Tensor


def damp(eta: Tensor, theta: Tensor, weighting: Weighting) -> Damped:
    """Weigh momentum where it is written (`step`), where it is added (`added`), or at both."""
    damping = 1 - eta
    return Damped(
        step=theta * damping if weighting in ("step", "both") else theta,
        added=damping if weighting in ("added", "both") else torch.ones_like(damping),
    )


def join_retentions(alpha: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """One forgetting gate and one step from local and global retention.

    Miras writes a step as the memory that best trades what is to be learned against being changed
    (local retention, l) and against being large (global retention, g):

        W_t = argmin over W of <W, gradient> + D(W, W_{t-1}) / l + R(W) / g

    With D and R half the squared distance and norm, or the Kullback-Leibler divergence and the
    negative entropy of weights that are distributions (then W stands for logs), the derivative is
    zero at W_t = lambda W_{t-1} - l lambda gradient, lambda = g / (g + l). Here l = theta and
    g = (1 - alpha) / alpha, so that a shut alpha forgets nothing.
    """
    whole = (1 - alpha + alpha * theta).clamp_min(torch.finfo(alpha.dtype).tiny)
    return alpha * theta / whole, theta * (1 - alpha) / whole


def gates_of(tokens: Tokens, rule: Rule) -> Tokens:
    """The tokens with the forgetting, momentum and step that the rule makes of their gates."""
    if rule.momentum is not None:
        tokens = tokens._replace(eta=torch.full_like(tokens.eta, rule.momentum))
    if rule.forgetting == "local-global":
        alpha, theta = join_retentions(tokens.alpha, tokens.theta)
        tokens = tokens._replace(alpha=alpha, theta=theta)
    return tokens


def settle(tokens: Tokens, rule: Rule) -> Steps:
    """The factors that gates and rule make."""
    tokens = gates_of(tokens, rule)
    eta = tokens.eta
    step, added = damp(eta, tokens.theta, rule.weighting)
    if rule.learner == "newton-schulz":
        # S is made orthogonal: what scales it is lost, so the step stands where it is added.
        step, added = torch.ones_like(step), added * step
    if rule.window_errors == "mean":
        step = step / rule.window
    gamma = tokens.gamma
    if gamma is None:
        gamma = torch.ones_like(eta)[..., None].expand(*eta.shape, rule.window)
    return Steps(1 - tokens.alpha, eta, step, added, gamma)
