"""Addressed randomness: every generator is derived from where its draws are used."""

from __future__ import annotations

import hashlib
import json

import numpy as np


def generator(seed: int, *address: str | int) -> np.random.Generator:
    """Returns the generator that belongs to one address of one run.

    Nothing is carried from one draw to the next use, so any client's round can be recomputed
    alone. The first rows of a larger draw equal a smaller draw from the same address.

    Args:
        seed: The seed of the run.
        *address: What the draws are for, for example ``"batches", round, client``.

    Returns:
        A fresh generator; equal arguments give equal draws.

    Raises:
        TypeError: A part is neither text nor a whole number.
    """
    for part in (seed, *address):
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise TypeError(f"an address is made of text and whole numbers, not {part!r}")
    # JSON keeps ("a", "b") apart from ("a/b",) and 1 apart from "1".
    text = json.dumps([seed, *address])
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))
