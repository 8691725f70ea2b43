"""The way to run a rule that is fastest for the length given."""

from __future__ import annotations

from torch import Tensor

from atlas.memory.kernels.chunked import run_chunked
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.rule import Rule, Tokens
from atlas.memory.rules.state import MemoryState


def run_rule(tokens: Tokens, state: MemoryState, rule: Rule) -> tuple[Tensor, MemoryState]:
    """Follow `rule` over T tokens: in chunks, or directly if there is but one token.

    Args:
        tokens: T of them, at least one.
        state: Before the first.
        rule: The same that made the state.

    Returns:
        Outputs [B, H, T, d_v] in the dtype of the values, and the state after the last token.
    """
    run = run_naive if tokens.length == 1 else run_chunked
    return run(tokens, state, rule)
