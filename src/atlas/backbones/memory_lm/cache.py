"""What an Atlas model carries on after a text, in the place where others keep keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.cache_utils import Cache

from atlas.memory.layer.state import BlockState, detached, from_flat, restarted, rows_of, to_flat


class Starting(Protocol):
    """A model that can say how its blocks start."""

    def start_states(self, batch: int) -> list[BlockState]:
        """The state of every block before the first token."""
        ...


class AtlasCache(Cache):  # type: ignore[misc]
    """The states of all blocks after the tokens read so far; its size does not grow with them.

    Attributes:
        states: One for each block; empty before the first token.
        ended: Whether padding followed some text, so that no more can be read after it.
    """

    def __init__(self, states: list[BlockState] | None = None) -> None:
        """A cache with these states, or of nothing read yet."""
        super().__init__(layers=[])
        self.states = states or []
        self.ended = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read so far."""
        return self.states[layer_idx].layer.position if self.states else 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """No limit."""
        del layer_idx
        return -1

    def mask_for(self, ids: Tensor) -> Tensor:
        """A mask [B, past + T] by which `generate` knows that all of `ids` [B, T] are new."""
        return ids.new_ones(len(ids), self.get_seq_length() + ids.shape[1])

    def reset(self) -> None:
        """Back to nothing read, for all sequences."""
        self.states, self.ended = [], False

    def restart(self, model: Starting, rows: Tensor) -> None:
        """Back to the start for some sequences of the batch, bool [B]."""
        fresh = model.start_states(len(rows))
        pairs = zip(self.states, fresh, strict=True)
        self.states = [restarted(state, start, rows) for state, start in pairs]

    def detach(self) -> None:
        """Cut from the graph: gradients of later tokens do not reach earlier ones."""
        self.states = [detached(state) for state in self.states]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Give every beam the state of the beam it goes on from."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences `indices`."""
        self.states = [rows_of(state, indices) for state in self.states]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, side by side."""
        if self.states:
            index = torch.arange(self.batch_size).repeat_interleave(repeats)
            self.batch_select_indices(index)

    def crop(self, tokens_to_remove: int) -> None:
        """What was read cannot be unread.

        Raises:
            ValueError: If tokens are to be removed.
        """
        if tokens_to_remove:
            raise ValueError("a memory cannot unread tokens: use another way of decoding")

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        flat: dict[str, Tensor] = {}
        for i, state in enumerate(self.states):
            flat |= to_flat(state, f"blocks.{i}")
        flat["ended"] = torch.tensor([self.ended])
        save_file(flat, path)

    @classmethod
    def load(cls, path: Path, model: Starting) -> AtlasCache:
        """Read what `save` wrote.

        Args:
            path: The file.
            model: The same as when it was written.

        Raises:
            InputError: If the file was written by another model.
        """
        flat = load_file(path)
        cache = cls()
        if len(flat) > 1:
            fresh = model.start_states(1)
            cache.states = [from_flat(flat, s, f"blocks.{i}") for i, s in enumerate(fresh)]
        cache.ended = bool(flat["ended"])
        return cache

    @property
    def batch_size(self) -> int:
        """Sequences; -1 before the first token."""
        return len(self.states[0].layer.window.seen) if self.states else -1

    @property
    def is_compileable(self) -> bool:
        """Its states are new values at each step."""
        return False

    @property
    def is_croppable(self) -> bool:
        """See `crop`."""
        return False

    def __len__(self) -> int:
        return len(self.states)
