"""What kind of memory a layer has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from atlas.errors import InputError
from atlas.memory.layer.levels import Levels
from atlas.memory.rules.rule import Rule
from atlas.memory.schedule import Stage, with_chunks

Gradient = Literal["full", "detached"]


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
    gradient: Gradient = "full"

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
