"""Blocks in pieces on packed tokens: everything but attention runs without padding.

Of the last block one place of each text may be read without anybody's keys or values
(`folded_read`): one query meets all keys of its text, q . (W_k x_j) = (W_k' q) . x_j. So the query
is taken through the key projection once per text, and the tokens through none. Likewise the values
of a text are only ever added up by weights: the sum of p_j W_v x_j is W_v times the sum of p_j x_j.
Two products per token become two per text. A bias on keys moves all scores of a query alike, which
changes nothing; this holds for families whose positions do not turn keys.

Letters in shapes: n rows, b texts each, N = n * b, T tokens, D width, H heads, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from atlas.backbones.block_parts import attention, stay
from atlas.backbones.blocks import Model, Position, added_mask
from atlas.backbones.families import Family
from atlas.federation.adapters.lora_hooks import LoraChange, Projected
from atlas.federation.batching.packing import Packing

Projecting = Callable[[str], Tensor]
"""From a projection's short name to what it makes of a block's packed input."""


def projection_widths(family: Family, block: Model) -> tuple[int, ...]:
    """Numbers that each of a block's projections gives; none if it cannot be taken apart."""
    if family.parts is None:
        return ()
    return tuple(
        block.get_submodule(family.modules[name]).out_features for name in family.projections
    )


def project(family: Family, block: Model, hidden: Tensor) -> tuple[Tensor, ...]:
    """What each of a block's projections makes of its input [..., .]."""
    return tuple(map(calling(family, block, hidden), family.projections))


def calling(family: Family, block: Model, hidden: Tensor) -> Projecting:
    """Projections by the modules of the block."""
    assert family.parts is not None
    return partial(_project, family, block, family.parts.enter(block, hidden))


def recalling(family: Family, block: Model, hidden: Tensor, projected: Projected) -> Projecting:
    """Projections that are known, with what adapters add to them."""
    known = dict(zip(family.projections, projected.values, strict=True))
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
    query, key, value = map(pages.spread, _attended(family, projecting))
    asked = torch.arange(query.shape[1], device=hidden.device).expand(len(query), -1)
    turned = parts.page(position, pages.within)
    seen = attention(parts, block, (query, key, value), mask, turned, asked)
    return parts.leave(block, pages.gather(seen, packing.real.shape), hidden)


def _attended(family: Family, projecting: Projecting) -> tuple[Tensor, ...]:
    """Queries, keys and values, also of a module that gives all three side by side."""
    found = tuple(map(projecting, family.projections))
    return found if len(found) > 1 else found[0].chunk(3, dim=-1)


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
    projected = _read_projections(family, block, parts.enter(block, hidden), packing, read)
    allowed = mask.expand(len(at), -1, -1, -1)[:, 0][rows, at][:, None]
    seen = attention(parts, block, projected, allowed, position, at)
    return parts.leave(block, seen, hidden.flatten(0, 1)[read])


def _read_projections(
    family: Family, block: Model, entered: Tensor, packing: Packing, read: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the tokens that are read [N, Q, .], keys and values of all [N, T, .]."""
    if len(family.projections) == 1:
        query, key, value = _attended(family, partial(_project, family, block, entered))
        return query.flatten(0, 1)[read], packing.spread(key), packing.spread(value)
    return (
        _project(family, block, entered.flatten(0, 1)[read], "query"),
        packing.spread(_project(family, block, entered, "key")),
        packing.spread(_project(family, block, entered, "value")),
    )


def _project(family: Family, block: Model, entered: Tensor, name: str) -> Tensor:
    """What the block's linear module of that short name makes of tokens."""
    out: Tensor = block.get_submodule(family.modules[name])(entered)
    return out


def can_fold(family: Family, changes: Iterable[LoraChange] = ()) -> bool:
    """Whether keys and values of this family, so changed, need not be computed.

    What depends on the token in more than its numbers cannot be taken out of a sum over tokens.
    """
    apart = len(family.projections) > 1
    plain = all(change.gate is None for change in changes)
    return plain and apart and family.parts is not None and family.parts.turn is stay


def folded_read(  # noqa: PLR0913
    changes: Mapping[str, LoraChange],
    family: Family,
    block: Model,
    hidden: Tensor,
    mask: Tensor,
    position: Position,
    packing: Packing,
    at: Tensor,
) -> Tensor:
    """What a block puts out at place `at` [N, 1] of each text, [N, 1, D].

    Args:
        changes: What adapters add to the block's modules, by path inside it.
        family: The block's.
        block: The block.
        hidden: Its packed input.
        mask: What each place of each text may see [N, 1, T, T].
        position: As the blocks of the family take it.
        packing: Where texts are.
        at: The place that is read.
    """
    parts, rows = family.parts, torch.arange(len(at), device=at.device)[:, None]
    assert parts is not None
    tokens = packing.spread(parts.enter(block, hidden))  # [N, T, D]
    here = hidden.flatten(0, 1)[packing.slots[rows, at]]
    width = parts.width(block)
    query: Tensor = block.get_submodule(family.modules["query"])(parts.enter(block, here))
    query = query.reshape(len(at), -1, width)  # [N, H, E]
    key, value = (_Folded.of(family, block, changes, name, width) for name in ("key", "value"))
    scores = torch.bmm(key.back(query), tokens.transpose(1, 2)) * width**-0.5
    allowed = added_mask(mask.expand(len(at), -1, -1, -1)[:, 0][rows, at], scores.dtype)
    bias = parts.bias(position, at)
    scores = scores + (allowed if bias is None else allowed + bias[:, :, 0])
    seen = value.on(torch.bmm(torch.softmax(scores, -1), tokens))
    return parts.leave(block, seen.flatten(1)[:, None], here)


class _Folded:
    """A projection by heads, with what its adapters add."""

    def __init__(self, module: nn.Linear, change: LoraChange | None, width: int) -> None:
        self.weight = torch.unflatten(module.weight, 0, (-1, width))  # [H, E, D]
        self.bias = None if module.bias is None else module.bias.reshape(-1, width)
        self.change = change

    @classmethod
    def of(
        cls, family: Family, block: Model, changes: Mapping[str, LoraChange], name: str, width: int
    ) -> _Folded:
        path = family.modules[name]
        return cls(block.get_submodule(path), changes.get(path), width)

    def back(self, heads: Tensor) -> Tensor:
        """Queries [N, H, E] as what they look for in tokens [N, H, D]."""
        found = torch.bmm(heads.transpose(0, 1), self.weight).transpose(0, 1)
        if self.change is None:
            return found
        a, b, own = self._own(self.change, heads)
        # A constant in all keys moves all scores of a query alike, and so does nothing.
        extra = torch.einsum("nbhr,nrd->nbhd", torch.einsum("nbhe,nher->nbhr", own, b), a)
        return self._added(self.change, found, extra, own, "bhe,hed->bhd")

    def on(self, sums: Tensor) -> Tensor:
        """Weighted sums of tokens [N, H, D] as sums of values [N, H, E]."""
        found = torch.bmm(sums.transpose(0, 1), self.weight.transpose(1, 2)).transpose(0, 1)
        found = found if self.bias is None else found + self.bias
        if self.change is None:
            return found
        a, b, own = self._own(self.change, sums)
        # One product after the other: nothing wider than a rank lies between them.
        low = torch.einsum("nbhd,nrd->nbhr", own, a)
        if self.change.offset is not None:
            low = low + self.change.offset[:, None, None]  # the shares of a sum add up to one
        extra = torch.einsum("nbhr,nher->nbhe", low, b)
        return self._added(self.change, found, extra, own, "bhd,hed->bhe")

    def _own(self, change: LoraChange, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A [n, R, D], B by heads [n, H, E, R], and what each row was given [n, b, H, .]."""
        b = torch.unflatten(change.b, 1, self.weight.shape[:2])
        own = given.to(b.dtype).reshape(len(b), -1, *given.shape[1:])
        return change.a, b, own

    def _added(
        self, change: LoraChange, found: Tensor, extra: Tensor, own: Tensor, dense: str
    ) -> Tensor:
        """With what low ranks made of `own`, and whole changes row by row: most rows have none."""
        if change.dense:
            heads = self.weight.shape[:2]
            whole = [
                some if d is None else some + torch.einsum(dense, x, torch.unflatten(d, 0, heads))
                for some, x, d in zip(extra, own, change.dense, strict=True)
            ]
            extra = torch.stack(whole)
        return found + extra.reshape(found.shape).to(found.dtype)
