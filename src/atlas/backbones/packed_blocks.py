"""Blocks in pieces on packed tokens: everything but attention runs without padding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from atlas.backbones.blocks import Model, Position
from atlas.backbones.families import Family
from atlas.backbones.parts import attention
from atlas.federation.adapters.lora_hooks import Projected
from atlas.federation.batching.packing import Packing

PROJECTIONS = ("query", "key", "value")
Projecting = Callable[[str], Tensor]
"""From a projection's short name to what it makes of a block's packed input."""


def projection_widths(family: Family, block: Model) -> tuple[int, ...]:
    """Numbers that each of a block's projections gives; none if it cannot be taken apart."""
    if family.parts is None:
        return ()
    return tuple(block.get_submodule(family.modules[name]).out_features for name in PROJECTIONS)


def project(family: Family, block: Model, hidden: Tensor) -> tuple[Tensor, ...]:
    """What each of a block's projections makes of its input [..., .]."""
    return tuple(map(calling(family, block, hidden), PROJECTIONS))


def calling(family: Family, block: Model, hidden: Tensor) -> Projecting:
    """Projections by the modules of the block."""
    assert family.parts is not None
    return partial(_project, family, block, family.parts.enter(block, hidden))


def recalling(family: Family, block: Model, hidden: Tensor, projected: Projected) -> Projecting:
    """Projections that are known, with what adapters add to them."""
    known = dict(zip(PROJECTIONS, projected.values, strict=True))
    assert family.parts is not None
    entered = family.parts.enter(block, hidden)

    def find(name: str) -> Tensor:
        change = projected.changes.get(family.modules[name])
        return known[name] if change is None else change.onto(known[name], entered)

    return find


def paged_block(  # noqa: PLR0913
    family: Family,
    block: Model,
    hidden: Tensor,
    mask: Tensor,
    position: Position,
    packing: Packing,
    projecting: Projecting,
) -> Tensor:
    """A block that can be taken apart, applied to packed tokens [n, S, D].

    Args:
        family: The block's.
        block: The block.
        hidden: Its input.
        mask: What each place of each page may see [M, 1, P, P].
        position: As the blocks of the family take it, for texts.
        packing: Where texts are.
        projecting: Gives queries, keys and values.
    """
    parts, pages = family.parts, packing.pages
    assert parts is not None
    query, key, value = (pages.spread(projecting(name)) for name in PROJECTIONS)
    asked = torch.arange(query.shape[1], device=hidden.device).expand(len(query), -1)
    turned = parts.page(position, pages.within)
    seen = attention(parts, block, (query, key, value), mask, turned, asked)
    return parts.leave(block, pages.gather(seen, packing.real.shape), hidden)


def read_block(  # noqa: PLR0913
    family: Family,
    block: Model,
    hidden: Tensor,
    mask: Tensor,
    position: Position,
    packing: Packing,
    at: Tensor,
) -> Tensor:
    """What a block puts out at places `at` [N, Q] of each text, [N, Q, D].

    A classification head reads the first token of an encoder, or the last of a causal model, a
    vocabulary the tokens before those of the answer. Every token still gives its key and value, but
    queries, output projection and feed-forward part are needed at those places alone.
    """
    rows = torch.arange(len(at), device=at.device)[:, None]
    if family.parts is None:
        return family.run(block, packing.spread(hidden), mask, position)[rows, at]
    read = packing.slots[rows, at]
    parts = family.parts
    entered = parts.enter(block, hidden)
    projected = (
        _project(family, block, entered.flatten(0, 1)[read], "query"),
        packing.spread(_project(family, block, entered, "key")),
        packing.spread(_project(family, block, entered, "value")),
    )
    allowed = mask.expand(len(at), -1, -1, -1)[:, 0][rows, at][:, None]
    seen = attention(parts, block, projected, allowed, position, at)
    return parts.leave(block, seen, hidden.flatten(0, 1)[read])


def _project(family: Family, block: Model, entered: Tensor, name: str) -> Tensor:
    """What the block's linear module of that short name makes of tokens."""
    out: Tensor = block.get_submodule(family.modules[name])(entered)
    return out
