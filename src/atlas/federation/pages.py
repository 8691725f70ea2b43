"""Texts several to a page, for attention: few pages cost less than many short texts.

Letters in shapes: n rows (clients), N texts, S tokens of the longest row, T tokens of the longest
text, M pages, P places of a page.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PAGE = 64
"""Places of a page on the CPU, unless a text is longer. Attention looks at all pairs of places, so
more would be wasted on pairs of different texts; `docs/speed.md` has what was measured."""
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pages:
    """Where tokens stand on pages.

    Attributes:
        slots: The packed token at each place [M, P]; any token where there is none.
        text: The text there [M, P]; -1 where there is none.
        within: Which of its tokens [M, P].
        back: The place, in M * P, of each packed token [n * S]; any place for what is none.
    """

    slots: Tensor
    text: Tensor
    within: Tensor
    back: Tensor

    def spread(self, packed: Tensor) -> Tensor:
        """Packed tokens [n, S, D] on their pages [M, P, D]."""
        return laid_out(packed, self.slots)

    def gather(self, paged: Tensor, shape: torch.Size) -> Tensor:
        """What is on pages [M, P, D] as packed tokens of that shape [n, S]."""
        return packed_again(paged, self.back, shape)

    def apart(self) -> Tensor:
        """Which places see which, where every token sees its text [M, 1, P, P]."""
        return (self.text[:, :, None] == self.text[:, None, :])[:, None]

    def seen(self, mask: Tensor) -> Tensor:
        """Which places see which, by what the places of each text see [N, 1, T, T].

        A place without a token sees others like it, so there is something to see for each.
        """
        text = self.text.clamp_min(0)[:, :, None]
        if len(mask) == 1:
            text = torch.zeros_like(text)
        found = mask[:, 0][text, self.within[:, :, None], self.within[:, None, :]][:, None]
        apart = self.apart()
        if mask.dtype == torch.bool:
            return found & apart
        return found.masked_fill(~apart, torch.finfo(mask.dtype).min)


def laid_out(packed: Tensor, slots: Tensor) -> Tensor:
    """Packed tokens [n, S, D] at places [M, P, D] that say which of them they hold [M, P]."""
    found = packed.flatten(0, 1).index_select(0, slots.flatten())
    return torch.unflatten(found, 0, slots.shape)


def packed_again(places: Tensor, back: Tensor, shape: torch.Size) -> Tensor:
    """What is at places [M, P, D] as packed tokens of a shape [n, S], each found at `back`."""
    return torch.unflatten(places.flatten(0, 1).index_select(0, back), 0, shape)


def find_pages(
    counts: Ints, tokens: tuple[Ints, Ints], place: Ints, packed: int, device: torch.device
) -> Pages:
    """The pages of texts that were packed.

    Args:
        counts: Tokens of each text [n, b]; zero for those that take no room.
        tokens: What `tokens_of` says of them.
        place: The packed place of each token, text after text.
        packed: How many packed places there are, n * S.
        device: Of the tensors returned.
    """
    room = max(int(counts.max()), min(PAGE, int(counts.sum(1).max())))
    page, begin, pages = lay_out(counts, room)
    owner, within = tokens
    spot = (page * room + begin).reshape(-1)[owner] + within
    slots, text, inside = np.zeros((3, pages * room), dtype=np.int64)
    text[:] = -1
    slots[spot], text[spot], inside[spot] = place, owner, within
    back = np.zeros(packed, dtype=np.int64)
    back[place] = spot
    on_pages = (one.reshape(pages, room) for one in (slots, text, inside))
    slots_, text_, inside_, back_ = (torch.from_numpy(one).to(device) for one in (*on_pages, back))
    return Pages(slots_, text_, inside_, back_)


def tokens_of(counts: Ints) -> tuple[Ints, Ints]:
    """The text that each token is of, counted over all rows, and which of its tokens."""
    flat = counts.reshape(-1)
    owner = np.repeat(np.arange(len(flat)), flat)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(flat) - flat, flat)


def lay_out(counts: Ints, room: int) -> tuple[Ints, Ints, int]:
    """A page for each text of each row, and where on it the text begins.

    Rows have pages of their own, so a row's do not depend on others; the longest texts come first.

    Args:
        counts: Tokens of each text [n, b]; zero for those that take no room.
        room: Places of a page, no less than the longest text has.

    Returns:
        Pages [n, b], beginnings [n, b] and the number of pages.
    """
    page, begin, pages = np.zeros_like(counts), np.zeros_like(counts), 0
    for row, lengths in enumerate(counts.tolist()):
        filled: list[int] = []
        for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
            length = lengths[text]
            if not length:
                break
            free = (p for p, used in enumerate(filled) if used + length <= room)
            chosen = next(free, len(filled))
            if chosen == len(filled):
                filled.append(0)
            page[row, text], begin[row, text] = pages + chosen, filled[chosen]
            filled[chosen] += length
        pages += len(filled)
    return page, begin, pages
