"""What an Atlas model carries on after a text, in the place where others keep keys and values.

A model that carries a state must know where a batch is padded, and whether it can bear it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

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


class Padding(NamedTuple):
    """Where padding stands.

    Attributes:
        real: False at padding [B, T]; None where no token need know of it: nothing follows padding
            that stands after a text, and tokens do not look ahead.
        inside: Whether padding stands between two tokens of a text.
        after: Whether padding stands after some text.
    """

    real: Tensor | None
    inside: bool
    after: bool

    def check(self, before: bool, cache: AtlasCache) -> None:
        """Refuse padding that would change what other tokens give.

        Args:
            before: Whether the model bears padding before a text.
            cache: What was read already.

        Raises:
            ValueError: With what to do instead.
        """
        if cache.ended:
            raise ValueError(
                "padding was read after a text, so the text cannot go on: pad prompts on the left, "
                "or read them one by one"
            )
        if self.inside:
            raise ValueError("attention_mask: padding inside a text; allowed: before or after it")
        if self.real is not None and cache.get_seq_length():
            raise ValueError("attention_mask: padding before the text, but a text has begun")
        if self.real is not None and not before:
            raise ValueError(
                "attention_mask: padding before a text would move the places where this model's "
                "chunks, segments or levels begin; pad on the right, or read texts one by one"
            )


NO_PADDING = Padding(None, inside=False, after=False)


def read_padding(mask: Tensor | None, length: int) -> Padding:
    """What a mask says of its last `length` tokens.

    Args:
        mask: Zero at padding, [B, past + T], or None.
        length: T.
    """
    if mask is None:
        return NO_PADDING
    if mask.dim() != 2:
        raise ValueError(f"attention_mask: {mask.dim()} dimensions; allowed: [batch, tokens]")
    real = mask[:, -length:].bool()
    if bool(real.all()):
        return NO_PADDING
    begun = real.cumsum(1) > 0
    goes_on = real.flip(1).cumsum(1).flip(1) > 0
    before = ~begun & goes_on
    inside = ~real & begun & goes_on
    return Padding(
        real=real if bool(before.any()) else None,
        inside=bool(inside.any()),
        after=not bool(goes_on.all()),
    )
