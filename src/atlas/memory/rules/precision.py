"""What every way to run a rule has in common: its checks, and the precision it works in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps

import torch
from torch import Tensor

from atlas.memory.rules.rule import Rule, Tokens
from atlas.memory.rules.state import MemoryState, cast

Run = Callable[[Tokens, MemoryState, Rule], tuple[Tensor, MemoryState]]


def in_given_precision(like: Tensor) -> AbstractContextManager[None]:
    """Keep autocast out, also where a backward pass is started within it."""
    return torch.autocast(like.device.type, enabled=False)


def in_full_precision(run: Run) -> Run:
    """Run in float32 or better, outside autocast; outputs come back in the values' dtype.

    A memory adds up thousands of small writes, which half precision would swallow. The state stays
    in the precision that was worked in.
    """

    @wraps(run)
    def run_checked(tokens: Tokens, state: MemoryState, rule: Rule) -> tuple[Tensor, MemoryState]:
        _check(tokens, state, rule)
        given, dtype = tokens.values.dtype, torch.promote_types(tokens.keys.dtype, torch.float32)
        with in_given_precision(tokens.keys):
            outputs, state = run(tokens.each(lambda part: part.to(dtype)), cast(state, dtype), rule)
        return outputs.to(given), state

    return run_checked


def _check(tokens: Tokens, state: MemoryState, rule: Rule) -> None:
    """Raise unless tokens, state and rule belong together."""
    if tokens.length < 1:
        raise ValueError("a memory is given at least one token")
    if tokens.gamma is not None and tokens.gamma.shape[-1] != rule.window:
        found = tokens.gamma.shape[-1]
        raise ValueError(f"gamma weighs {found} tokens, the window of the rule has {rule.window}")
    if state.keys.shape[2] != rule.window - 1:
        found = state.keys.shape[2]
        raise ValueError(f"the state holds {found} past keys, the rule needs {rule.window - 1}")
    if (state.start is None) != (rule.gradient == "exact") or state.offset >= rule.chunk:
        raise ValueError("the state was made for another kind of gradient or a larger chunk")
    if (state.prefix is None) != (rule.queries == "plain"):
        raise ValueError("the state was made for another kind of queries")
