"""Rotary positions: queries and keys are turned by angles that grow with their place.

Only differences of places show in a product of two turned vectors, so places may be counted from
anywhere, such as from the start of a window: nothing depends on how long a text already is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Angles(NamedTuple):
    """Cosine and sine of every place and pair of channels, [places, d / 2] each."""

    cos: Tensor
    sin: Tensor

    def at(self, places: slice) -> Angles:
        """Those of some places."""
        return Angles(self.cos[places], self.sin[places])


def angles_of(places: int, width: int, base: float, like: Tensor) -> Angles:
    """Angles of places 0, 1, ... in the precision of `like`, float32 at least.

    Args:
        places: How many.
        width: d, even.
        base: The slowest pair of channels turns by about 1 / base per place.
        like: Gives device and dtype.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    pairs = torch.arange(0, width, 2, dtype=dtype, device=like.device) / width
    turns = torch.arange(places, dtype=dtype, device=like.device)[:, None] * base**-pairs
    return Angles(turns.cos(), turns.sin())


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn vectors [..., places, d]; channel i is paired with channel i + d / 2."""
    cos, sin = (part.to(x.dtype) for part in angles)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
