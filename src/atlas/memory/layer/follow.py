"""One entrance for every rule: what a memory starts from, how it reads on, what it answers with.

Rules of Titans and ATLAS have a `MemoryState` and the kernels; those of the Miras family have a
`VariantState` and one or two matrices. Whoever holds a memory need not know which it is.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from atlas.config.rule import Rule
from atlas.memory.kernels.chunked import run_rule
from atlas.memory.miras.architecture import ARCHITECTURES, MemoryWeights
from atlas.memory.miras.chunked import variant_chunked
from atlas.memory.miras.from_rule import begin_variant, run_variant, variant_of
from atlas.memory.miras.naive import variant_naive
from atlas.memory.miras.variant import VariantState, present_weights
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.rule import Tokens
from atlas.memory.rules.state import MemoryState, initial_state

RuleState = MemoryState | VariantState
AnyState = TypeVar("AnyState", bound=MemoryState | VariantState)


def begin(weights: MemoryWeights, rule: Rule) -> RuleState:
    """The state before the first token; gradients reach the weights it starts from.

    Args:
        weights: The matrices [B, H, rows, columns] that `shapes_of` names; logs for kl retention.
        rule: The rule that will be followed.
    """
    if rule.family == "miras":
        return begin_variant(weights, rule)
    (memory,) = weights
    return initial_state(memory, rule)


def begin_again(state: RuleState, rule: Rule) -> RuleState:
    """The start of a text from what a memory holds: its own chunk, window and momentum."""
    if isinstance(state, MemoryState):
        return initial_state(state.memory, rule)._replace(prefix=state.prefix)
    return begin_variant(state.dual, rule)._replace(anchor=state.anchor)


def at_rest(state: AnyState) -> AnyState:
    """The same memory without momentum: what is neither written nor forgotten then stays."""
    if isinstance(state, MemoryState):
        return state._replace(momentum=torch.zeros_like(state.momentum))
    return state._replace(momentum=tuple(map(torch.zeros_like, state.momentum)))


def carried_on(left: RuleState, fresh: RuleState) -> RuleState:
    """What a memory holds at the start of a new text: its own chunk and window, M and S as left.

    Args:
        left: What another text left.
        fresh: The start of a text by the same rule.
    """
    if isinstance(left, MemoryState) and isinstance(fresh, MemoryState):
        return fresh._replace(
            memory=left.memory,
            momentum=left.momentum,
            prefix=left.prefix,
            start=None if fresh.start is None else left.memory,
        )
    if isinstance(left, VariantState) and isinstance(fresh, VariantState):
        return fresh._replace(
            dual=left.dual, momentum=left.momentum, start=left.dual, anchor=left.anchor
        )
    raise TypeError("the two states are of different rules")


def follow(tokens: Tokens, state: RuleState, rule: Rule) -> tuple[Tensor, RuleState]:
    """Follow a rule over T tokens.

    Returns:
        Outputs [B, H, T, d_v] in the dtype of the values, and the state after the last token.
    """
    if isinstance(state, MemoryState):
        return run_rule(tokens, state, rule)
    return run_variant(variant_chunked, tokens, state, rule)


def follow_naive(tokens: Tokens, state: RuleState, rule: Rule) -> tuple[Tensor, RuleState]:
    """The same, token by token: the law that `follow` is tested against."""
    if isinstance(state, MemoryState):
        return run_naive(tokens, state, rule)
    return run_variant(variant_naive, tokens, state, rule)


def shapes_of(rule: Rule, d_k: int, d_v: int) -> tuple[tuple[int, int], ...]:
    """Rows and columns of every matrix of a memory."""
    return ARCHITECTURES[rule.architecture]().shapes(d_k, d_v, rule.expansion * d_v)


def weights_of(state: RuleState, rule: Rule) -> MemoryWeights:
    """The matrices that a memory as it stands answers with."""
    if isinstance(state, MemoryState):
        return (state.memory,)
    return present_weights(variant_of(rule), state)


def momenta_of(state: RuleState) -> MemoryWeights:
    """What the learner carries, a matrix for each of the memory's."""
    return (state.momentum,) if isinstance(state, MemoryState) else state.momentum


def answer(weights: MemoryWeights, queries: Tensor, rule: Rule) -> Tensor:
    """What these matrices answer to queries [B, H, n, d_k], nothing being written."""
    return ARCHITECTURES[rule.architecture]().apply(weights, queries.to(weights[0].dtype))
