"""A rule that keeps its inputs alone, and runs again for its gradients.

Within a checkpointed block whatever is kept for the backward pass may be looked at once. What the
chunked rules keep is looked at twice, so there they are run through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from atlas.memory.rule import Rule, Tokens
from atlas.memory.run import run_rule
from atlas.memory.state import COUNTS, MemoryState

Parts = Sequence[Tensor | None]
TOKEN_PARTS = len(Tokens._fields)
STATE_PARTS = len(MemoryState._fields) - len(COUNTS)


class _Frame(NamedTuple):
    """What a run needs beside tensors."""

    rule: Rule
    counts: tuple[int, ...]

    def run(self, parts: Parts) -> tuple[Any, ...]:
        """Outputs, then the fields of the state, from the fields of tokens and state."""
        tokens = Tokens._make(parts[:TOKEN_PARTS])
        state = MemoryState._make((*parts[TOKEN_PARTS:], *self.counts))
        outputs, after = run_rule(tokens, state, self.rule)
        return (outputs, *after)


def rerun_rule(tokens: Tokens, state: MemoryState, rule: Rule) -> tuple[Tensor, MemoryState]:
    """As `run_rule`, at the cost of a second run and without keeping anything but the inputs."""
    frame = _Frame(rule, (state.offset, state.position))
    found = _Rerun.apply(frame, *tokens, *state[:STATE_PARTS])  # type: ignore[no-untyped-call]
    return found[0], MemoryState._make(found[1:])


class _Rerun(Function):
    @staticmethod
    def forward(ctx: Any, frame: _Frame, *parts: Tensor | None) -> tuple[Any, ...]:  # noqa: ANN401
        ctx.frame = frame
        ctx.save_for_backward(*parts)
        return frame.run(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        needed = ctx.needs_input_grad[1:]
        with torch.enable_grad():
            leaves = [
                None if part is None else part.detach().requires_grad_(wanted)
                for part, wanted in zip(ctx.saved_tensors, needed, strict=True)
            ]
            results = ctx.frame.run(leaves)
        reached = [
            (result, grad)
            for result, grad in zip(results, grads, strict=True)
            if isinstance(result, Tensor) and result.requires_grad and grad is not None
        ]
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        outputs, given = zip(*reached, strict=True)
        found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True))
        own = (next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves)
        return None, *own
