"""Which modules of an adapter travel in a round: those that matter most, within a budget of bytes.

Four things bound the choice by what matters. What is open stays open unless it falls behind by
more than `hysteresis`, so that masks do not flicker. What has waited counts for more, the more the
longer: it has learned what nobody has been told. Nothing stays shut for longer than a limit:
whoever must wait is served in the order of deadlines, early enough for all of them. And something
is always open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def shut_limit(budget: float) -> int:
    """Rounds after which a module that was shut is opened: 4 * ceil(1 / budget)."""
    return 4 * math.ceil(1 / budget)


def choose_open(
    salience: Tensor,
    sizes: Sequence[int],
    shut: Sequence[int],
    budget: float,
    hysteresis: float,
    waiting: float = 0.0,
) -> list[bool]:
    """The modules that are open in the next round.

    Args:
        salience: What each module counts [m], none below zero.
        sizes: Bytes of each.
        shut: Rounds for which each has been shut; 0 if it was open in the last one.
        budget: Share of all bytes that may travel, above 0 and up to 1.
        hysteresis: By how much, relative to it, a shut module must count for more than an open one
            to take its place.
        waiting: A module that was shut for t rounds counts (1 + t) ** waiting times as much.
    """
    room, limit = budget * sum(sizes), shut_limit(budget)
    due = _due(sizes, shut, room, limit)
    held = torch.tensor([not rounds for rounds in shut])
    waited = (1 + torch.tensor(shut, dtype=salience.dtype)) ** waiting
    counts = torch.where(held, salience * (1 + hysteresis), salience * waited)
    # Equal ones in the order in which they were shut: everybody's turn comes.
    order = sorted(range(len(sizes)), key=lambda m: (-float(counts[m]), -shut[m], m))
    chosen: list[int] = []
    for module in [*due, *(m for m in order if m not in due)]:
        if not chosen or sum(sizes[m] for m in [*chosen, module]) <= room:
            chosen.append(module)
    return [module in chosen for module in range(len(sizes))]


def _due(sizes: Sequence[int], shut: Sequence[int], room: float, limit: int) -> list[int]:
    """Modules that must open now, so that none waits longer than the limit, the oldest first.

    As many open in a round as the largest of them fit; who is further back in the queue must be
    let in earlier.
    """
    queue = sorted((m for m, rounds in enumerate(shut) if rounds), key=lambda m: (-shut[m], m))
    each = max(1, int(room // max(sizes)))
    late = [
        place for place, m in enumerate(queue) if shut[m] + math.ceil((place + 1) / each) > limit
    ]
    return queue[: late[-1] + 1] if late else []


def blend_salience(before: Tensor | None, now: Tensor, ema: float) -> Tensor:
    """What modules count, smoothed over rounds; each round's adds up to one, whatever its unit."""
    share = now / now.sum().clamp_min(torch.finfo(now.dtype).tiny)
    return share if before is None else ema * before + (1 - ema) * share
