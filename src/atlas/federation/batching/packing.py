"""Texts side by side without padding, and several to a page where attention needs them apart.

All that a block does token by token runs on packed tokens, client by client; attention alone
needs texts apart, and few attention pages cost less than many short texts. Letters in shapes:
n rows (clients), b texts per row, N = n * b, S tokens of the longest row, T tokens of the longest
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
class AttentionPages:
    """Where tokens stand on pages.

    Attributes:
        slots: The packed token at each place [M, P]; any of the same row where there is none.
        text: The text there [M, P]; -1 where there is none.
        within: Which of its tokens [M, P].
        back: The place, in M * P, of each packed token [n * S]; any of the same row for what is
            none.
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
) -> AttentionPages:
    """The pages of texts that were packed.

    What is filled up is filled with a token of the same row: a client whose numbers are NaN must
    not be met by others, not even where nothing is made of it, since 0 * NaN is NaN.

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
    size, taken = packed // len(counts), counts > 0
    rows = np.zeros(pages, dtype=np.int64)
    rows[page[taken]] = np.nonzero(taken)[0]
    slots = np.repeat(rows * size, room)
    text, inside = np.full(pages * room, -1), np.zeros(pages * room, dtype=np.int64)
    slots[spot], text[spot], inside[spot] = place, owner, within
    back = np.zeros(packed, dtype=np.int64)
    back[place] = spot
    back = np.repeat(back[::size], size)
    back[place] = spot
    on_pages = (one.reshape(pages, room) for one in (slots, text, inside))
    slots_, text_, inside_, back_ = (torch.from_numpy(one).to(device) for one in (*on_pages, back))
    return AttentionPages(slots_, text_, inside_, back_)


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


ALIGNED = 16
"""Rows are filled up to a multiple of this. Matrix products treat rests of their tiles in another
order, so that a row's last bits would otherwise depend on how many rows come before it."""
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Packing:
    """Where tokens stand.

    Attributes:
        slots: The packed token at each place of each text [N, T]; at padding one of its row.
        mask: True at real tokens [N, T].
        back: The place, in N * T, of each packed token [n * S]; one of its row where a row is
            longer than its texts.
        real: True where a packed token is one [n, S].
        pages: The same tokens for attention.
    """

    slots: Tensor
    mask: Tensor
    back: Tensor
    real: Tensor
    pages: AttentionPages

    def spread(self, packed: Tensor) -> Tensor:
        """Packed tokens [n, S, D] as padded texts [N, T, D]; padding holds other tokens."""
        return laid_out(packed, self.slots)

    def gather(self, padded: Tensor) -> Tensor:
        """Padded texts [N, T, D] as packed tokens [n, S, D]."""
        return packed_again(padded, self.back, self.real.shape)

    def frame(self, packed: Tensor) -> Tensor:
        """An empty rectangle [N, T, D] of the packed tokens' kind, for those who ask its shape."""
        return packed.new_empty(1).expand(*self.slots.shape, packed.shape[-1])


@dataclass(frozen=True)
class PackedPlan:
    """A packing of given texts, and what goes to each place [n, S].

    Attributes:
        packing: Where tokens stand.
        text: The text that a packed token is of, counted over all n * b.
        within: Which of its tokens.
    """

    packing: Packing
    text: Tensor
    within: Tensor

    def source(self, offsets: Tensor) -> Tensor:
        """Where packed tokens are found [n, S], if each text [n, b] begins at its offset."""
        return offsets.flatten()[self.text] + self.within


def pack(lengths: Ints, present: Flags, device: torch.device) -> PackedPlan:
    """Pack texts row by row.

    A text that is not present takes no room: it borrows the places of its row's first text. In a
    row without any, the first text is packed all the same, since every row must have a token.

    Args:
        lengths: Tokens of each text [n, b], positive.
        present: False where a row has fewer than b texts [n, b].
        device: Of the tensors returned.
    """
    n, b = lengths.shape
    packed = present.copy()
    packed[:, 0] |= ~present.any(1)
    counts = np.where(packed, lengths, 0)
    starts = np.where(packed, np.cumsum(counts, 1) - counts, 0)
    shown = np.where(packed, lengths, lengths[:, :1])
    size, longest = -(-int(counts.sum(1).max()) // ALIGNED) * ALIGNED, int(shown.max())
    base = np.arange(n)[:, None] * size + starts
    places = np.arange(longest)
    mask = places < shown.reshape(-1, 1)
    slots = np.where(mask, base.reshape(-1, 1) + places, base.reshape(-1, 1))
    owner, within = tokens_of(counts)
    place = base.reshape(-1)[owner] + within
    texts = np.repeat(np.arange(n) * b, size)
    places_within = np.zeros(n * size, dtype=np.int64)
    real = np.zeros(n * size, dtype=bool)
    texts[place], places_within[place], real[place] = owner, within, True
    slots_, mask_, text_, within_, real_ = (
        torch.from_numpy(np.ascontiguousarray(array)).to(device)
        for array in (slots, mask, texts, places_within, real)
    )
    pages = find_pages(counts, (owner, within), place, n * size, device)
    back = text_ * longest + within_
    packing = Packing(slots_, mask_, back, real_.reshape(n, size), pages)
    return PackedPlan(packing, text_.reshape(n, size), within_.reshape(n, size))
