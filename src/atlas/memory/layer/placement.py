"""Where the memory stands beside attention (Titans, arXiv 2501.00663, section 4).

- `gate`: both read the same tokens; a learned share g in [floor, 1] mixes what they say.
- `context`: attention also sees what the memory recalled for each token, and the memory then reads
  what attention made of it.
- `layer`: attention reads tokens to which the memory has added what it knows.

The paper leaves the gating of `gate` and `context` open; here it is
(1 - g) norm(attention) + g norm(memory), so that a floor keeps the memory in use. Its `context`
puts what was recalled for a segment in front of the segment, where every token sees all of it;
here a token sees what was recalled for itself and for those before it, so nothing looks ahead. The
memory that is asked is the one before the segment, and a segment is read in one go. Of several
memories (see `levels`) it is the one of the whole text; local ones answer where they are written.
Queries are plain here even if the rule projects them: what is recalled meets no norm, and projected
queries grow with the keys seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from atlas.memory.layer.attention import WindowAttention
from atlas.memory.layer.branch import MemoryBranch
from atlas.memory.layer.follow import weights_of
from atlas.memory.layer.gates import Gates, ReadMode
from atlas.memory.layer.observe import floored_gate
from atlas.memory.layer.state import BranchState, LayerState


class LayerParts(NamedTuple):
    """The modules of a layer that a placement puts in order.

    Attributes:
        attention: To the window.
        memory: Beside it.
        share: The memory's share before the sigmoid, [..., D] -> [..., H d].
        attention_norm: Of what attention says.
        memory_norm: Of what the memory says.
        segment: Tokens for which the memory is asked at once, as context.
    """

    attention: WindowAttention
    memory: MemoryBranch
    share: nn.Linear
    attention_norm: nn.RMSNorm
    memory_norm: nn.RMSNorm
    segment: int


class LayerInput(NamedTuple):
    """What is read, tokens [B, T, D], False at padding [B, T], and how."""

    x: Tensor
    real: Tensor
    mode: ReadMode


class Placed(NamedTuple):
    """What a placement gives: [B, T, H d], the state after it, the gates and the share g."""

    output: Tensor
    state: LayerState
    gates: Gates
    share: Tensor


Placement = Callable[[LayerParts, LayerInput, LayerState], Placed]


def as_gate(parts: LayerParts, reading: LayerInput, state: LayerState) -> Placed:
    """Attention and memory side by side."""
    x, real, mode = reading
    seen, window = parts.attention(x, state.window, real)
    known, branch, gates = parts.memory(x, _branch(state), real, mode)
    share = _share(parts, reading)
    output = _blend(parts, seen, known, share)
    return Placed(output, state._replace(window=window, branch=branch), gates, share)


def as_layer(parts: LayerParts, reading: LayerInput, state: LayerState) -> Placed:
    """Memory first, attention after it."""
    x, real, mode = reading
    known, branch, gates = parts.memory(x, _branch(state), real, mode)
    share = _share(parts, reading)
    added = rms_norm(x + share * parts.memory_norm(known), x.shape[-1:], eps=parts.memory_norm.eps)
    seen, window = parts.attention(added * real[..., None], state.window, real)
    moved = state._replace(window=window, branch=branch)
    return Placed(parts.attention_norm(seen), moved, gates, share)


def as_context(parts: LayerParts, reading: LayerInput, state: LayerState) -> Placed:
    """What the memory recalls is attended to, segment by segment."""
    pieces = []
    for piece in _segments(reading, state.offset, parts.segment):
        mixed = _one_segment(parts, piece, state)
        state = mixed.state
        pieces.append(mixed)
    outputs, _, gates, shares = zip(*pieces, strict=True)
    columns = (
        torch.cat(own, 2) if own[0] is not None else None for own in zip(*gates, strict=True)
    )
    joined = Gates._make(columns)
    return Placed(torch.cat(outputs, 1), state, joined, torch.cat(shares, 1))


def _one_segment(parts: LayerParts, reading: LayerInput, state: LayerState) -> Placed:
    """Tokens of one segment, which may have begun before."""
    x, real, mode = reading
    assert state.start is not None
    recalled = parts.memory.recall(x, state.start)
    seen, window = parts.attention(x, state.window, real, recalled)
    known, branch, gates = parts.memory(seen, _branch(state), real, mode)
    share = _share(parts, reading)
    offset = (state.offset + x.shape[1]) % parts.segment
    moved = state._replace(
        window=window,
        branch=branch,
        start=state.start if offset else weights_of(branch.memory, parts.memory.settings.rule),
        offset=offset,
    )
    return Placed(_blend(parts, seen, known, share), moved, gates, share)


def _segments(reading: LayerInput, offset: int, segment: int) -> Iterator[LayerInput]:
    begin, length = 0, reading.x.shape[1]
    while begin < length:
        end = min(length, begin + segment - offset)
        yield LayerInput(reading.x[:, begin:end], reading.real[:, begin:end], reading.mode)
        begin, offset = end, 0


def _branch(state: LayerState) -> BranchState:
    assert state.branch is not None
    return state.branch


def _share(parts: LayerParts, reading: LayerInput) -> Tensor:
    return floored_gate(parts.share(reading.x), reading.mode.floors.mix)


def _blend(parts: LayerParts, seen: Tensor, known: Tensor, share: Tensor) -> Tensor:
    seen, known = parts.attention_norm(seen), parts.memory_norm(known)
    return seen + share * (known - seen)


PLACEMENTS: dict[str, Placement] = {"gate": as_gate, "context": as_context, "layer": as_layer}
