"""Texts side by side without padding, and where their tokens stand in a padded rectangle.

All that a block does token by token runs on packed tokens, client by client; attention alone
needs texts apart. Letters in shapes: n rows (clients), b texts per row, N = n * b, S tokens of the
longest row, T tokens of the longest text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.federation.pages import Ints, Pages, find_pages, laid_out, packed_again, tokens_of

ALIGNED = 16
"""Rows are filled up to a multiple of this. Matrix products treat rests of their tiles in another
order, so that a row's last bits would otherwise depend on how many rows come before it."""
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Packing:
    """Where tokens stand.

    Attributes:
        slots: The packed token at each place of each text [N, T]; any token at padding.
        mask: True at real tokens [N, T].
        back: The place, in N * T, of each packed token [n * S]; any place where a row is longer
            than its texts.
        real: True where a packed token is one [n, S].
        pages: The same tokens for attention.
    """

    slots: Tensor
    mask: Tensor
    back: Tensor
    real: Tensor
    pages: Pages

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
class Plan:
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


def pack(lengths: Ints, present: Flags, device: torch.device) -> Plan:
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
    texts, places_within = np.zeros((2, n * size), dtype=np.int64)
    real = np.zeros(n * size, dtype=bool)
    texts[place], places_within[place], real[place] = owner, within, True
    slots_, mask_, text_, within_, real_ = (
        torch.from_numpy(np.ascontiguousarray(array)).to(device)
        for array in (slots, mask, texts, places_within, real)
    )
    pages = find_pages(counts, (owner, within), place, n * size, device)
    back = text_ * longest + within_
    packing = Packing(slots_, mask_, back, real_.reshape(n, size), pages)
    return Plan(packing, text_.reshape(n, size), within_.reshape(n, size))
