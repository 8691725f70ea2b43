"""How a sequence is cut into runs of equal blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Stretch(NamedTuple):
    """Tokens begin to end - 1 in blocks of equal size.

    A new chunk starts every `period` blocks, and after the last block if `closes`.
    """

    begin: int
    end: int
    block: int
    period: int
    closes: bool


def within_one_chunk(begin: int, end: int, block: int, closes: bool) -> Iterator[Stretch]:
    """Whole blocks, then the rest; no new chunk starts between them."""
    rest = (end - begin) % block
    whole = end - rest
    if begin < whole:
        yield Stretch(begin, whole, block, whole - begin, closes and not rest)
    if rest:
        yield Stretch(whole, end, rest, 1, closes)


def chunk_stretches(length: int, offset: int, chunk: int, block: int) -> Iterator[Stretch]:
    """Cut T tokens so that chunks keep their places.

    Args:
        length: T, at least one.
        offset: Tokens that the open chunk already has.
        chunk: Tokens per chunk.
        block: Most tokens per block.
    """
    at = min(length, chunk - offset) if offset else 0
    if at:
        yield from within_one_chunk(0, at, block, closes=offset + at == chunk)
    block = min(block, chunk)
    whole = length - (length - at) % chunk
    if chunk % block == 0 and at < whole:
        yield Stretch(at, whole, block, chunk // block, True)
        at = whole
    for begin in range(at, length, chunk):
        end = min(begin + chunk, length)
        yield from within_one_chunk(begin, end, block, closes=end - begin == chunk)
