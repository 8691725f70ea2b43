"""A memory layer: sliding-window attention and a memory that learns while it reads.

Tokens in, tokens out, and one explicit state in between. A sequence that is cut anywhere, or read
token by token, gives what the whole one gives.

Persistent tokens are learned inputs that belong to no text. Each branch reads them once, before the
first token: attention keeps their keys and values in sight of every token, and the memory starts
from what it is after reading them. Both are part of the state, so cutting a sequence does not show.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atlas.memory.layer.attention import WindowAttention, projection
from atlas.memory.layer.branch import MemoryBranch
from atlas.memory.layer.follow import momenta_of, weights_of
from atlas.memory.layer.gates import PLAIN_READ, ReadMode
from atlas.memory.layer.observe import LayerView
from atlas.memory.layer.placement import PLACEMENTS, LayerInput, LayerParts, Placed
from atlas.memory.layer.settings import LayerSettings, Stage
from atlas.memory.layer.state import LayerState

PERSISTENT_SPREAD = 0.02


class MemoryLayer(nn.Module):
    """[B, T, D] -> [B, T, D]; norms and residual paths around it are the caller's."""

    def __init__(self, settings: LayerSettings) -> None:
        """A layer with random weights."""
        super().__init__()
        width, self.settings = settings.width, settings
        self.persistent = nn.Parameter(torch.empty(settings.persistent, width))
        self.attention = WindowAttention(settings)
        self.attention_norm = nn.RMSNorm(width, eps=settings.eps)
        self.memory: MemoryBranch | None = None
        if settings.placement != "none":
            self.memory = MemoryBranch(settings)
            self.memory_norm = nn.RMSNorm(width, eps=settings.eps)
            self.share_proj = nn.Linear(width, width, bias=settings.share_bias)
        self.o_proj = projection(width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the persistent tokens."""
        nn.init.normal_(self.persistent, std=PERSISTENT_SPREAD)

    def set_chunks(self, stage: Stage) -> None:
        """Read in the chunks of a stage from now on; no weight changes.

        Raises:
            InputError: The layer's memories cannot have such chunks.
        """
        self.settings = self.settings.at(stage)
        if self.memory is not None:
            self.memory.settings = self.settings

    def start(self, batch: int, mode: ReadMode = PLAIN_READ) -> LayerState:
        """The state before the first token of `batch` sequences; gradients reach what it is of."""
        persistent = self.persistent.expand(batch, -1, -1)
        context = self.settings.placement == "context"
        window = self.attention.start(persistent, streams=2 if context else 1)
        if self.memory is None:
            return LayerState(window, None, None)
        branch = self.memory.start(persistent, mode)
        asked = weights_of(branch.memory, self.settings.rule) if context else None
        return LayerState(window, branch, asked)

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
                mode.watch(_view(before, mixed, mode, self.settings))
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


def _view(before: LayerState, mixed: Placed, mode: ReadMode, settings: LayerSettings) -> LayerView:
    assert before.branch is not None and mixed.state.branch is not None
    rules, after = settings.rules, mixed.state.branch.memories
    gates = mixed.gates.named() | {"mix": mixed.share}
    return LayerView(
        memory=[m for own in zip(after, rules, strict=True) for m in weights_of(*own)],
        before=[
            m for own in zip(before.branch.memories, rules, strict=True) for m in weights_of(*own)
        ],
        momentum=[m for own in after for m in momenta_of(own)],
        retention=1 - mixed.gates.alpha,
        gates=gates,
        floors={n: floor for n, floor in mode.floors._asdict().items() if n in gates},
    )
