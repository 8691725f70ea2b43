"""What a block carries from one token to the next: plain nested values, batch first.

Everything that a sequence leaves behind is in here and nowhere else. A state goes in, a state comes
out; it can be cut from the graph, saved, given to other rows, or put back to the start for some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from atlas.errors import InputError
from atlas.memory.layer.continuum import LevelState
from atlas.memory.layer.follow import RuleState, carried_on
from atlas.memory.miras.architecture import MemoryWeights
from atlas.memory.rules.state import MemoryState

_State = TypeVar("_State")


class WindowState(NamedTuple):
    """What sliding-window attention still sees.

    Attributes:
        keys: Of the last w - 1 tokens, not yet turned by their places, [B, H, S, w - 1, d]; S is
            one, or two where every token also brings what the memory recalled for it.
        values: Their values.
        seen: False where there was no token, or padding, [B, w - 1].
        prefix_keys: Of the persistent tokens, which every token sees, [B, H, P, d].
        prefix_values: Their values.
    """

    keys: Tensor
    values: Tensor
    seen: Tensor
    prefix_keys: Tensor
    prefix_values: Tensor


class BranchState(NamedTuple):
    """All that a memory carries.

    Attributes:
        memory: Of the whole text.
        tail: The last inputs of the convolution before it, [B, width - 1, 3 H d].
        local: Memories of the open shard (see `levels`).
    """

    memory: RuleState
    tail: Tensor
    local: tuple[MemoryState, ...] = ()

    @property
    def memories(self) -> tuple[RuleState, ...]:
        """All of them, that of the whole text first."""
        return (self.memory, *self.local)


class LayerState(NamedTuple):
    """All that one layer carries.

    Attributes:
        window: Of its attention.
        branch: Of its memory; None in a layer without one.
        start: Memory as context: its matrices at the start of the open segment [B, H, rows,
            columns], else None.
        offset: Tokens of the open segment that are done; zero without segments.
        position: Tokens since the start.
    """

    window: WindowState
    branch: BranchState | None
    start: MemoryWeights | None
    offset: int = 0
    position: int = 0


class BlockState(NamedTuple):
    """A layer's state and that of a feed-forward part that learns; None where it does not."""

    layer: LayerState
    levels: tuple[LevelState, ...] | None


def each_tensor(state: _State, change: Callable[[Tensor], Tensor]) -> _State:
    """The same change made to every tensor of any of these states."""
    return cast(_State, _walk(state, change))


def detached(state: _State) -> _State:
    """The same values, cut from the graph."""
    return each_tensor(state, lambda part: part.detach())


def rows_of(state: _State, index: Tensor) -> _State:
    """The sequences `index` [n] of the batch, in that order and as often as they are named."""
    return each_tensor(state, lambda part: part.index_select(0, index.to(part.device)))


def restarted(state: BlockState, fresh: BlockState, rows: Tensor) -> BlockState:
    """Put some sequences of the batch back to `fresh`, leaving the others as they are.

    Args:
        state: Of the running batch.
        fresh: A start state of the same shapes.
        rows: Which sequences start again, bool [B].

    Raises:
        ValueError: The state is within a chunk, shard, segment or period whose place counts, so
            that the restarted sequences would be given a shorter first one than a new one has.
    """
    layer = state.layer
    opened = [layer.offset, *(level.offset for level in state.levels or ())]
    if layer.branch is not None and fresh.layer.branch is not None:
        opened.append(layer.branch.memory.offset)
        shards = zip(layer.branch.local, fresh.layer.branch.local, strict=True)
        opened.extend(own.position - new.position for own, new in shards)
    if any(opened):
        raise ValueError("within a chunk, shard, segment or period; restart where one begins")
    return cast(BlockState, _choose(state, fresh, rows))


def memory_alone(state: BlockState, fresh: BlockState) -> BlockState:
    """The start of a new sequence, with the memory that another one left and nothing else of it.

    Attention's window, the convolution's tail, the last keys and values of an Omega window, local
    memories and learning feed-forward parts are those of `fresh`, so nothing that was read lately
    can be seen but through M, S and what queries are projected onto.
    """
    left, start = state.layer.branch, fresh.layer
    if left is None or start.branch is None:
        return fresh
    kept = carried_on(left.memory, start.branch.memory)
    recalled = start.start
    if recalled is not None:  # as context: what the memory answers with until the next segment
        own = left.memory
        recalled = (own.memory,) if isinstance(own, MemoryState) else state.layer.start
    return fresh._replace(
        layer=start._replace(branch=start.branch._replace(memory=kept), start=recalled)
    )


def to_flat(state: object, prefix: str = "") -> dict[str, Tensor]:
    """As a flat dict that safetensors can write: field names joined by dots."""
    flat = {}
    for name, part in _leaves(state, prefix):
        if isinstance(part, Tensor):
            # Copied: some parts are views or one and the same, and files hold no tensor twice.
            flat[name] = part.detach().clone(memory_format=torch.contiguous_format)
        else:
            flat[name] = torch.tensor([part])
    return flat


def from_flat(flat: Mapping[str, Tensor], like: _State, prefix: str = "") -> _State:
    """Read back what `to_flat` made.

    Args:
        flat: Tensors by name.
        like: A start state of the same model, for any batch: it says what there must be.
        prefix: As it was written.

    Raises:
        InputError: A part is missing, of another size than the model's, or none of the model's.
    """
    prefix = prefix.removesuffix(".")
    state = _fill(flat, like, prefix)
    known = {name for name, _ in _leaves(like, prefix)}
    for name in flat:
        if name not in known and (not prefix or name.startswith(f"{prefix}.")):
            raise InputError(f"the state has {name}; it was made by another model")
    return cast(_State, state)


def _walk(state: object, change: Callable[[Tensor], Tensor]) -> object:
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, tuple):
        return _rebuilt(state, [_walk(part, change) for part in state])
    return state


def _choose(old: object, new: object, rows: Tensor) -> object:
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        wide = rows.to(old.device).view(-1, *[1] * (old.dim() - 1))
        return torch.where(wide, new.to(old.dtype), old)
    if isinstance(old, tuple) and isinstance(new, tuple):
        pairs = zip(old, new, strict=True)
        return _rebuilt(old, [_choose(*pair, rows) for pair in pairs])
    return old


def _rebuilt(state: tuple[Any, ...], parts: list[object]) -> object:
    return state._make(parts) if hasattr(state, "_make") else tuple(parts)


def _named(state: tuple[Any, ...], prefix: str) -> Iterator[tuple[str, object]]:
    names = getattr(state, "_fields", range(len(state)))
    start = f"{prefix}." if prefix else ""
    for name, part in zip(names, state, strict=True):
        yield f"{start}{name}", part


def _leaves(state: object, prefix: str) -> Iterator[tuple[str, Tensor | int]]:
    if isinstance(state, tuple):
        for name, part in _named(state, prefix.removesuffix(".")):
            yield from _leaves(part, name)
    elif isinstance(state, Tensor | int):
        yield prefix, state


def _fill(flat: Mapping[str, Tensor], like: object, name: str) -> object:
    if isinstance(like, tuple):
        return _rebuilt(like, [_fill(flat, part, own) for own, part in _named(like, name)])
    if not isinstance(like, Tensor | int):
        return like
    if name not in flat:
        raise InputError(f"the state has no {name}; it was made by another model")
    found = flat[name]
    if isinstance(like, int):
        return int(found)
    if found.shape[1:] != like.shape[1:]:
        wanted = tuple(like.shape[1:])
        raise InputError(
            f"the state's {name} is {tuple(found.shape[1:])} per sequence, not {wanted}"
        )
    return found.to(like.device)
