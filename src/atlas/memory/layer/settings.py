"""What kind of memory a layer has: its heads, rules, and the stages of two-stage training.

Chunk-start gradients make the chunk size part of the function: large chunks train fast, and a
short second stage with small ones wins back what they cost (TNT, arXiv 2511.07343).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from atlas.errors import InputError
from atlas.memory.layer.levels import Levels
from atlas.memory.rules.rule import Rule


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


MemoryGradient = Literal["full", "detached"]


@dataclass(frozen=True)
class MemorySettings:
    """What kind of memory.

    Attributes:
        rule: What it does with a token; `queries` of it is where they are projected.
        local_rules: Of memories that go back to a learned start every shard.
        local_shard: Tokens of a shard; None where there are no local memories.
        convolution: Tokens that each channel of q, k, v sees.
        degree: Of the polynomial features of q and k; one is q and k themselves.
        gradient: `detached`: what is written, and how, gets no gradient, only reading does. A
            control: memories that were written outside the graph never learned to write.
    """

    rule: Rule = Rule()
    local_rules: tuple[Rule, ...] = ()
    local_shard: int | None = None
    convolution: int = 4
    degree: int = 1
    gradient: MemoryGradient = "full"

    def __post_init__(self) -> None:
        """Refuse local memories that are none."""
        shard = self.local_shard
        if (shard is None) == bool(self.local_rules):
            raise InputError(
                f"local_shard: {shard}; allowed: a number with local_rules, and only then"
            )
        if shard is not None and shard < 1:
            raise InputError(f"local_shard: {shard}; allowed: 1 or more")
        for i, own in enumerate(self.local_rules):
            self._check_local(f"local_rules[{i}]", own)

    def _check_local(self, key: str, own: Rule) -> None:
        if own.window != self.rule.window:
            raise InputError(
                f"{key}.window: {own.window}; allowed: {self.rule.window}, that of the rule, whose "
                "gates it shares"
            )
        if own.gradient == "chunk-start" and own.chunk > self.levels.shard:
            raise InputError(
                f"{key}.chunk: {own.chunk}; allowed: at most the local_shard of {self.local_shard}"
            )

    @property
    def levels(self) -> Levels:
        """All rules; where none is local, any shard does."""
        return Levels(self.rule, self.local_rules, self.local_shard or 1)

    def at(self, stage: Stage) -> MemorySettings:
        """The same memories with the chunks of a stage."""
        levels = with_chunks(self.levels, stage)
        return replace(self, rule=levels.shared, local_rules=levels.local)


@dataclass(frozen=True)
class Heads:
    """H heads of d channels each; together as wide as the tokens they read."""

    count: int
    width: int

    @property
    def total(self) -> int:
        """H d."""
        return self.count * self.width

    def projection(self) -> nn.Linear:
        """A linear map from tokens to all heads. No bias: padding of zero stays zero."""
        return nn.Linear(self.total, self.total, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """[B, ..., T, H d] -> [B, H, ..., T, d]."""
        return torch.unflatten(x, -1, (self.count, self.width)).movedim(-2, 1)

    def join(self, x: Tensor) -> Tensor:
        """[B, H, T, d] -> [B, T, H d]."""
        return x.transpose(1, 2).flatten(2)
