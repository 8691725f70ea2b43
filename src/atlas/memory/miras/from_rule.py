"""A rule as a variant: the four choices that its settings name, and the gates that it makes.

Rules of Titans and ATLAS whose errors are measured where a chunk starts are variants as well, so
that one declaration means the same wherever it is computed; the kernels are their faster form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from torch import Tensor

from atlas.config.rule import Rule
from atlas.memory.miras.architecture import ARCHITECTURES, MemoryWeights
from atlas.memory.miras.bias import Bias, huber, l2, lp
from atlas.memory.miras.learner import Learner, descent, momentum, newton_schulz
from atlas.memory.miras.retention import Retention, elastic_net, kl, lq
from atlas.memory.miras.retention import l2 as decay
from atlas.memory.miras.variant import Variant, VariantState, VariantTokens, fresh_state
from atlas.memory.rules.precision import in_given_precision
from atlas.memory.rules.rule import Tokens, gates_of

_BIASES: dict[str, Callable[[Rule], Bias]] = {
    "l2": lambda rule: l2(),
    "lp": lambda rule: lp(rule.bias_power),
    "huber": lambda rule: huber(),
}
_RETENTIONS: dict[str, Callable[[Rule], Retention]] = {
    "l2": lambda rule: decay(),
    "lq": lambda rule: lq(rule.retention_power),
    "kl": lambda rule: kl(rule.retention_mass),
    "elastic-net": lambda rule: elastic_net(rule.retention_threshold),
}
_LEARNERS: dict[str, Callable[[Rule], Learner]] = {
    "descent": lambda rule: descent(),
    "momentum": lambda rule: momentum(rule.weighting),
    "newton-schulz": lambda rule: newton_schulz(weighting=rule.weighting),
}

Run = Callable[[Variant, VariantTokens, VariantState], tuple[Tensor, VariantState]]


@cache
def variant_of(rule: Rule) -> Variant:
    """The variant that a rule with chunk-start gradients and a window of one token names."""
    return Variant(
        bias=_BIASES[rule.bias](rule),
        retention=_RETENTIONS[rule.retention](rule),
        learner=_LEARNERS[rule.learner](rule),
        architecture=ARCHITECTURES[rule.architecture](),
        chunk=rule.chunk,
    )


def begin_variant(weights: MemoryWeights, rule: Rule) -> VariantState:
    """The state before the first token; gradients reach the weights [B, H, rows, columns]."""
    return fresh_state(weights, weights if rule.anchor == "start" else None)


def run_variant(
    run: Run, tokens: Tokens, state: VariantState, rule: Rule
) -> tuple[Tensor, VariantState]:
    """Follow a rule over T tokens with `variant_chunked` or `variant_naive`.

    Outside autocast, and in the precision of the state: float32 or better.
    """
    given = gates_of(tokens, rule)
    own = VariantTokens(*given[:6], delta=given.delta)
    with in_given_precision(tokens.keys):
        return run(variant_of(rule), own, state)
