"""The rule, token by token: the law that the chunked form is tested against."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from atlas.memory.rules.precision import in_full_precision
from atlas.memory.rules.rule import Rule, Tokens, settle
from atlas.memory.rules.state import MemoryState
from atlas.ops.newton_schulz import newton_schulz


class _Token(NamedTuple):
    """One token: rows [B, H, 1, d], factors [B, H, 1, 1], gamma [B, H, c, 1]."""

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor
    carry: Tensor
    step: Tensor
    added: Tensor
    gamma: Tensor


@in_full_precision
def run_naive(tokens: Tokens, state: MemoryState, rule: Rule) -> tuple[Tensor, MemoryState]:
    """Follow `rule` over T tokens, one after the other.

    Returns:
        Outputs [B, H, T, d_v] in the dtype of the values, and the state after the last token.
    """
    steps = settle(tokens, rule)
    rows = [part.unbind(2) for part in (*tokens[:3], *steps)]
    outputs = []
    for row in zip(*rows, strict=True):
        vectors = (part[:, :, None] for part in row[:3])
        factors = (part[:, :, None, None] for part in row[3:7])
        token = _Token._make((*vectors, *factors, row[7][..., None]))
        output, state = _one_token(token, state, rule)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def _one_token(token: _Token, state: MemoryState, rule: Rule) -> tuple[Tensor, MemoryState]:
    keys = torch.cat([state.keys, token.key], 2)
    values = torch.cat([state.values, token.value], 2)
    errors = keys @ (state.memory if state.start is None else state.start) - values
    gradient = keys.mT @ (token.gamma * errors)
    momentum = token.carry * state.momentum - token.step * gradient
    added = newton_schulz(momentum) if rule.learner == "newton-schulz" else momentum
    memory = token.keep * state.memory + token.added * added
    query, prefix = _project(token, state)
    output = query @ (memory if rule.read == "after" else state.memory)
    offset = (state.offset + 1) % rule.chunk if rule.gradient == "chunk-start" else 0
    return output, MemoryState(
        memory=memory,
        momentum=momentum,
        start=memory if offset == 0 and state.start is not None else state.start,
        keys=keys[:, :, 1:],
        values=values[:, :, 1:],
        prefix=prefix,
        offset=offset,
        position=state.position + 1,
    )


def _project(token: _Token, state: MemoryState) -> tuple[Tensor, Tensor | None]:
    if state.prefix is None:
        return token.query, None
    unit = torch.nn.functional.normalize(token.key, dim=-1)
    prefix = state.prefix + unit.mT @ unit
    return token.query @ prefix, prefix
