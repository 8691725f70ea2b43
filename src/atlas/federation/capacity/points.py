"""Where a client's model is divided: by what its device holds, and lower where a trial says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atlas.config.plan import MB, RankSettings, SplitSettings
from atlas.errors import InputError
from atlas.federation.capacity.block_bytes import LargestBatch
from atlas.federation.capacity.cost import block_of
from atlas.federation.capacity.grant import (
    Grant,
    Site,
    budget_of,
    grant,
    least_ranks,
    told_budget,
)
from atlas.ops.capacity import Division, choose_division


def split_point(
    client: str,
    site: Site,
    ranks: RankSettings,
    split: SplitSettings,
    texts: LargestBatch,
    importance: Sequence[float],
) -> int | None:
    """Blocks a client runs itself; None for all. `auto` weighs what its device can hold.

    Raises:
        InputError: If the device could not even hold the first block.
    """
    if split.point != "auto":
        return split.point
    whole = budget_of(site, site.need(texts), ranks)
    points = range(1, site.depth + 1)
    divisions = [_division(site, ranks, p, texts, importance, whole) for p in points]
    best = choose_division(divisions, site.depth, split.weights.model_dump())
    if best is None:
        least = min(site.need(texts, p).fixed for p in points)
        raise InputError(
            f"client {client}{told_budget(site, ranks)}: {whole / MB:.1f} MB for training, but one "
            f"block with its embeddings takes {least / MB:.1f} MB; no split helps"
        )
    return best.point if best.point < site.depth else None


def _division(
    site: Site,
    ranks: RankSettings,
    point: int,
    texts: LargestBatch,
    importance: Sequence[float],
    budget: int,
) -> Division:
    need = site.need(texts, point)
    modules = zip(site.layout.modules, importance, strict=True)
    here = sum(own for module, own in modules if block_of(module) < point)
    traffic = 0 if point == site.depth else 1 + (point > site.first_block)
    least = need.total(least_ranks(site, ranks))
    return Division(point, least / budget, traffic, here / sum(importance))


def fewer_blocks(
    client: str, site: Site, ranks: RankSettings, texts: LargestBatch, found: Grant
) -> Grant | None:
    """A grant on fewer blocks, where even the smallest ranks took too much; None below one block.

    The budget stays that of the grant: where it hangs on what a client needs (`room`), fewer blocks
    would make it smaller. What the cost model left out is taken for the same on fewer blocks, as
    `lower` does for ranks.
    Where none would fit by that, one block is tried: it is the least that a device can do.
    """
    assert found.measured is not None
    missed = max(0, found.measured - found.used)
    least, kept = least_ranks(site, ranks), None
    for point in range((found.point or site.depth) - 1, 0, -1):
        need = site.need(texts, point)
        room = found.budget - need.total(least)
        if room >= 0:
            kept = point
        if room >= missed:
            break
    if kept is None:
        return None
    need = site.need(texts, kept)
    given = grant(client, site, need, ranks, found.importance, found.complexity, found.budget)
    return replace(given, point=kept, lowered=found.lowered + 1)
