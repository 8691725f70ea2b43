"""Two-stage training of `levels`: large chunks for most of it, smaller local ones at the end.

Chunk-start gradients make the chunk size part of the function: large chunks train fast, and a
short second stage with small ones wins back what they cost (TNT, arXiv 2511.07343).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from atlas.errors import InputError
from atlas.memory.layer.levels import Levels


class Stage(NamedTuple):
    """Chunk sizes up to a share of training.

    Attributes:
        shared: Chunk of the shared memory.
        local: Chunks of the local ones.
        until: Share of training at which the stage ends.
    """

    shared: int
    local: tuple[int, ...] = ()
    until: float = 1.0


TWO_STAGES = (
    Stage(shared=2048, local=(4, 8, 16, 32), until=0.95),
    Stage(shared=2048, local=(2, 4, 8, 16), until=1.0),
)


def stage_at(progress: float, stages: Sequence[Stage] = TWO_STAGES) -> Stage:
    """The stage that training is in.

    Args:
        progress: 0 at the start, 1 at the end.
        stages: In order.
    """
    return next((stage for stage in stages if progress < stage.until), stages[-1])


def with_chunks(levels: Levels, stage: Stage) -> Levels:
    """The same memories with the chunks of a stage.

    Raises:
        InputError: It is a stage of more or fewer local memories.
    """
    if len(stage.local) != len(levels.local):
        raise InputError(
            f"local: chunks {list(stage.local)}; allowed: one for each of the "
            f"{len(levels.local)} local memories"
        )
    pairs = zip(levels.local, stage.local, strict=True)
    local = tuple(replace(rule, chunk=chunk) for rule, chunk in pairs)
    return replace(levels, shared=replace(levels.shared, chunk=stage.shared), local=local)
