"""A memory layer: sliding-window attention and a memory that learns while it reads.

Tokens in, tokens out, and one explicit state in between. A sequence that is cut anywhere, or read
token by token, gives what the whole one gives.

Persistent tokens are learned inputs that belong to no text. Each branch reads them once, before the
first token: attention keeps their keys and values in sight of every token, and the memory starts
from what it is after reading them. Both are part of the state, so cutting a sequence does not show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from atlas.errors import InputError
from atlas.memory.layer.attention import WindowAttention
from atlas.memory.layer.branch import MemoryBranch
from atlas.memory.layer.gates import PLAIN_READ, ReadMode
from atlas.memory.layer.observe import LayerView
from atlas.memory.layer.placement import PLACEMENTS, LayerInput, LayerParts, Placed
from atlas.memory.layer.settings import Heads, MemorySettings, Stage
from atlas.memory.layer.state import LayerState

PlacementName = Literal["gate", "context", "layer", "none"]
PERSISTENT_SPREAD = 0.02


@dataclass(frozen=True)
class LayerSettings:
    """What kind of layer.

    Attributes:
        heads: Of attention and memory; together as wide as a token.
        window: Tokens that attention sees, itself included.
        placement: Where the memory stands (see `mixture`); `none` is attention alone.
        memory: What kind of memory.
        persistent: Tokens that belong to no text, P.
        segment: Tokens for which the memory is asked at once, for the placement `context`.
        rope_base: Of the rotary positions.
        eps: Of the norms.
    """

    heads: Heads
    window: int
    placement: PlacementName = "gate"
    memory: MemorySettings = MemorySettings()
    persistent: int = 4
    segment: int = 16
    rope_base: float = 10000.0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse what is not a layer."""
        if self.placement not in get_args(PlacementName):
            allowed = ", ".join(get_args(PlacementName))
            raise InputError(f"placement: {self.placement!r}; allowed: {allowed}")
        for name, least in (("window", 1), ("persistent", 0), ("segment", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name}: {getattr(self, name)}; allowed: {least} or more")
        if self.heads.width % 2:
            raise InputError(f"heads of {self.heads.width} channels; allowed: an even number")

    @property
    def padding_before(self) -> bool:
        """Whether padding before a text changes nothing: it must not move where things begin.

        Chunks, shards and segments are counted from the start of what is read.
        """
        if self.placement == "none":
            return True
        counted = self.memory.rule.gradient == "chunk-start" or bool(self.memory.local_rules)
        return self.placement != "context" and not counted


class MemoryLayer(nn.Module):
    """[B, T, D] -> [B, T, D]; norms and residual paths around it are the caller's."""

    def __init__(self, settings: LayerSettings) -> None:
        """A layer with random weights."""
        super().__init__()
        heads, width = settings.heads, settings.heads.total
        self.settings = settings
        self.persistent = nn.Parameter(torch.empty(settings.persistent, width))
        self.attention = WindowAttention(heads, settings.window, settings.rope_base)
        self.attention_norm = nn.RMSNorm(width, eps=settings.eps)
        self.memory: MemoryBranch | None = None
        if settings.placement != "none":
            self.memory = MemoryBranch(heads, settings.memory)
            self.memory_norm = nn.RMSNorm(width, eps=settings.eps)
            self.share_proj = heads.projection()
        self.o_proj = heads.projection()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the persistent tokens."""
        nn.init.normal_(self.persistent, std=PERSISTENT_SPREAD)

    def set_chunks(self, stage: Stage) -> None:
        """Read in the chunks of a stage from now on; no weight changes.

        Raises:
            InputError: The layer's memories cannot have such chunks.
        """
        self.settings = replace(self.settings, memory=self.settings.memory.at(stage))
        if self.memory is not None:
            self.memory.settings = self.settings.memory

    def start(self, batch: int, mode: ReadMode = PLAIN_READ) -> LayerState:
        """The state before the first token of `batch` sequences; gradients reach what it is of."""
        persistent = self.persistent.expand(batch, -1, -1)
        context = self.settings.placement == "context"
        window = self.attention.start(persistent, streams=2 if context else 1)
        if self.memory is None:
            return LayerState(window, None, None)
        branch = self.memory.start(persistent, mode)
        return LayerState(window, branch, branch.memory.memory if context else None)

    def forward(
        self,
        x: Tensor,
        state: LayerState | None = None,
        real: Tensor | None = None,
        mode: ReadMode = PLAIN_READ,
    ) -> tuple[Tensor, LayerState]:
        """Read T tokens.

        Args:
            x: [B, T, D].
            state: Before the first of them; None at the start of a text.
            real: False at padding, [B, T]; None if there is none. Only padding before a text,
                or after it, leaves its tokens as they are.
            mode: How to read.

        Returns:
            [B, T, D] and the state after the last token.
        """
        before = self.start(len(x), mode) if state is None else state
        if real is None:
            real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        else:
            x = x * real[..., None]
        if self.memory is None:
            seen, window = self.attention(x, before.window, real)
            output, after = self.attention_norm(seen), before._replace(window=window)
        else:
            mixed = PLACEMENTS[self.settings.placement](
                self._parts(self.memory), LayerInput(x, real, mode), before
            )
            output, after = mixed.output, mixed.state
            if mode.watch is not None:
                mode.watch(_view(before, mixed, mode))
        projected: Tensor = self.o_proj(output)
        return projected, after._replace(position=before.position + x.shape[1])

    def _parts(self, memory: MemoryBranch) -> LayerParts:
        return LayerParts(
            attention=self.attention,
            memory=memory,
            share=self.share_proj,
            attention_norm=self.attention_norm,
            memory_norm=self.memory_norm,
            segment=self.settings.segment,
        )


def _view(before: LayerState, mixed: Placed, mode: ReadMode) -> LayerView:
    assert before.branch is not None and mixed.state.branch is not None
    after = mixed.state.branch.memories
    gates = mixed.gates.named() | {"mix": mixed.share}
    return LayerView(
        memory=[own.memory for own in after],
        before=[own.memory for own in before.branch.memories],
        momentum=[own.momentum for own in after],
        retention=1 - mixed.gates.alpha,
        gates=gates,
        floors={n: floor for n, floor in mode.floors._asdict().items() if n in gates},
    )
