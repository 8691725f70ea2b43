"""Blocks in pieces on packed tokens: everything but attention runs without padding."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from atlas.backbones.blocks import Model, Position
from atlas.backbones.families import Family
from atlas.backbones.parts import attention
from atlas.federation.packing import Packing


def paged_block(
    family: Family, block: Model, hidden: Tensor, mask: Tensor, position: Position, packing: Packing
) -> Tensor:
    """A block that can be taken apart, applied to packed tokens [n, S, D].

    Args:
        family: The block's.
        block: The block.
        hidden: Its input.
        mask: What each place of each page may see [M, 1, P, P].
        position: As the blocks of the family take it, for texts.
        packing: Where texts are.
    """
    parts, pages = family.parts, packing.pages
    assert parts is not None
    entered = parts.enter(block, hidden)
    query, key, value = (
        pages.spread(_project(family, block, name, entered)) for name in ("query", "key", "value")
    )
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
    parts, project = family.parts, partial(_project, family, block)
    entered = parts.enter(block, hidden)
    projected = (
        project("query", entered.flatten(0, 1)[read]),
        packing.spread(project("key", entered)),
        packing.spread(project("value", entered)),
    )
    allowed = mask.expand(len(at), -1, -1, -1)[:, 0][rows, at][:, None]
    seen = attention(parts, block, projected, allowed, position, at)
    return parts.leave(block, seen, hidden.flatten(0, 1)[read])


def _project(family: Family, block: Model, name: str, entered: Tensor) -> Tensor:
    """What the block's linear module of that short name makes of tokens."""
    out: Tensor = block.get_submodule(family.modules[name])(entered)
    return out
