"""What a memory carries from one token to the next, as one explicit value.

Nothing hides in modules: a state goes in, a state comes out, and a sequence that is split anywhere
gives what the whole one gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from atlas.memory.rules.rule import Rule


class MemoryState(NamedTuple):
    """A memory between two tokens.

    Attributes:
        memory: M [B, H, d_k, d_v].
        momentum: S [B, H, d_k, d_v].
        start: M at the start of the open chunk [B, H, d_k, d_v]; None for exact rules.
        keys: The last c - 1 keys, zero before the first token, [B, H, c - 1, d_k].
        values: Their values [B, H, c - 1, d_v].
        prefix: Sum of the key projectors seen, [B, H, d_k, d_k]; None for plain queries.
        offset: Tokens done of the open chunk; 0 for exact rules.
        position: Tokens since the start.
    """

    memory: Tensor
    momentum: Tensor
    start: Tensor | None
    keys: Tensor
    values: Tensor
    prefix: Tensor | None
    offset: int = 0
    position: int = 0


COUNTS = ("offset", "position")


def initial_state(memory: Tensor, rule: Rule) -> MemoryState:
    """The state before the first token; gradients reach the memory it starts from.

    Args:
        memory: M_0 [B, H, d_k, d_v]; expand a learnable [H, d_k, d_v] over the batch.
        rule: The rule that will be followed.
    """
    memory = memory.to(torch.promote_types(memory.dtype, torch.float32))
    batch, heads, d_k, d_v = memory.shape
    return MemoryState(
        memory=memory,
        momentum=torch.zeros_like(memory),
        start=memory if rule.gradient == "chunk-start" else None,
        keys=memory.new_zeros(batch, heads, rule.window - 1, d_k),
        values=memory.new_zeros(batch, heads, rule.window - 1, d_v),
        prefix=memory.new_zeros(batch, heads, d_k, d_k) if rule.queries == "projected" else None,
    )


def detach(state: MemoryState) -> MemoryState:
    """The same values, cut from the graph."""
    parts = (part.detach() if isinstance(part, Tensor) else part for part in state)
    return MemoryState._make(parts)


def cast(state: MemoryState, dtype: torch.dtype) -> MemoryState:
    """The same values in another dtype."""
    parts = (part.to(dtype) if isinstance(part, Tensor) else part for part in state)
    return MemoryState._make(parts)


def restart(state: MemoryState, fresh: MemoryState, rows: Tensor) -> MemoryState:
    """Put some sequences of the batch back to `fresh`, leaving the others as they are.

    Args:
        state: Of the running batch.
        fresh: Initial state of the same shapes.
        rows: Which sequences start again, bool [B].

    Raises:
        ValueError: The state is within a chunk whose size counts, so the restarted sequences
            would be given a shorter first chunk than a new sequence has.
    """
    if state.offset:
        raise ValueError(f"{state.offset} tokens into a chunk; restart at a chunk's start")
    chosen = (
        torch.where(rows[:, None, None, None], new, old)
        if isinstance(old, Tensor) and isinstance(new, Tensor)
        else old
        for old, new in zip(state, fresh, strict=True)
    )
    return MemoryState._make(chosen)


def to_tensors(state: MemoryState, prefix: str = "") -> dict[str, Tensor]:
    """As a flat dict that safetensors can write; what a rule does not use is left out.

    Args:
        state: Any state.
        prefix: Put before every name, for several states in one file.
    """
    flat = {}
    for name, part in state._asdict().items():
        if isinstance(part, Tensor):
            # Copied: M at a chunk's start is M itself, and files hold no tensor twice.
            flat[prefix + name] = part.detach().clone(memory_format=torch.contiguous_format)
        elif part is not None:
            flat[prefix + name] = torch.tensor([part])
    return flat


def from_tensors(flat: Mapping[str, Tensor], prefix: str = "") -> MemoryState:
    """Read back what `to_tensors` made.

    Raises:
        KeyError: A part that every state has is missing.
    """
    parts = {name: flat.get(prefix + name) for name in ("start", "prefix")}
    for name in ("memory", "momentum", "keys", "values"):
        parts[name] = flat[prefix + name]
    counts = {name: int(flat[prefix + name]) for name in COUNTS}
    return MemoryState(**parts, **counts)  # type: ignore[arg-type]
