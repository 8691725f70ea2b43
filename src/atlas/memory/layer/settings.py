"""What a layer is made of: its heads, its memory and where it stands, and the stages of training.

Chunk-start gradients make the chunk size part of the function: large chunks train fast, and a
short second stage with small ones wins back what they cost (TNT, arXiv 2511.07343).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from atlas.errors import InputError
from atlas.memory.rules.rule import Rule

PlacementName = Literal["gate", "context", "layer", "none"]
MemoryGradient = Literal["full", "detached"]


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


def with_chunks(rules: Sequence[Rule], stage: Stage) -> tuple[Rule, ...]:
    """The same rules, that of the shared memory first, with the chunks of a stage.

    Raises:
        InputError: It is a stage of more or fewer local memories.
    """
    chunks = (stage.shared, *stage.local)
    if len(chunks) != len(rules):
        raise InputError(
            f"local: chunks {list(stage.local)}; allowed: one for each of the "
            f"{len(rules) - 1} local memories"
        )
    pairs = zip(rules, chunks, strict=True)
    return tuple(replace(rule, chunk=chunk) for rule, chunk in pairs)


@dataclass(frozen=True)
class LayerSettings:
    """What kind of layer.

    Attributes:
        heads: Of attention and memory, H.
        head_width: Channels of a head, d; all heads together are as wide as a token.
        window: Tokens that attention sees, itself included.
        placement: Where the memory stands (see `placement`); `none` is attention alone.
        rule: What the memory does with a token; `queries` of it is where they are projected.
        local_rules: Of memories that go back to a learned start every shard.
        local_shard: Tokens of a shard; None where there are no local memories.
        share_bias: Whether the memory's share has a bias, so that it can be shut for all tokens.
        memory_gradient: `detached`: what is written, and how, gets no gradient, only reading does.
            A control: memories that were written outside the graph never learned to write.
        convolution: Tokens that each channel of the memory's q, k, v sees.
        degree: Of the polynomial features of q and k; one is q and k themselves.
        persistent: Tokens that belong to no text, P.
        segment: Tokens for which the memory is asked at once, for the placement `context`.
        rope_base: Of the rotary positions.
        eps: Of the norms.
    """

    heads: int
    head_width: int
    window: int
    placement: PlacementName = "gate"
    rule: Rule = Rule()
    local_rules: tuple[Rule, ...] = ()
    local_shard: int | None = None
    share_bias: bool = False
    memory_gradient: MemoryGradient = "full"
    convolution: int = 4
    degree: int = 1
    persistent: int = 4
    segment: int = 16
    rope_base: float = 10000.0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse what is not a layer."""
        self._check_local()
        if self.placement not in get_args(PlacementName):
            allowed = ", ".join(get_args(PlacementName))
            raise InputError(f"placement: {self.placement!r}; allowed: {allowed}")
        for name, least in (("window", 1), ("persistent", 0), ("segment", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name}: {getattr(self, name)}; allowed: {least} or more")
        if self.head_width % 2:
            raise InputError(f"heads of {self.head_width} channels; allowed: an even number")

    def _check_local(self) -> None:
        """Refuse local memories that are none."""
        shard = self.local_shard
        if (shard is None) == bool(self.local_rules):
            raise InputError(
                f"local_shard: {shard}; allowed: a number with local_rules, and only then"
            )
        if shard is not None and shard < 1:
            raise InputError(f"local_shard: {shard}; allowed: 1 or more")
        for i, own in enumerate(self.local_rules):
            key = f"local_rules[{i}]"
            if own.family == "miras":
                raise InputError(
                    f"{key}: {own.of_miras}; allowed: rules of Titans and ATLAS, as local memories "
                    "are matrices that learn by momentum or newton-schulz"
                )
            if own.window != self.rule.window:
                raise InputError(
                    f"{key}.window: {own.window}; allowed: {self.rule.window}, that of the rule, "
                    "whose gates it shares"
                )
            if own.gradient == "chunk-start" and own.chunk > self.shard:
                raise InputError(
                    f"{key}.chunk: {own.chunk}; allowed: at most the local_shard of {shard}"
                )

    @property
    def width(self) -> int:
        """H d, that of a token."""
        return self.heads * self.head_width

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Of all memories, that of the whole text first."""
        return (self.rule, *self.local_rules)

    @property
    def constant_momentum(self) -> float | None:
        """The eta of every token; None where some memory has a gate for it."""
        known = [0.0 if rule.learner == "descent" else rule.momentum for rule in self.rules]
        return None if None in known else known[0]

    @property
    def shard(self) -> int:
        """Tokens of a shard; where no memory is local, any number does."""
        return self.local_shard or 1

    @property
    def padding_before(self) -> bool:
        """Whether padding before a text changes nothing: it must not move where things begin.

        Chunks, shards and segments are counted from the start of what is read.
        """
        if self.placement == "none":
            return True
        counted = self.rule.gradient == "chunk-start" or bool(self.local_rules)
        return self.placement != "context" and not counted

    def at(self, stage: Stage) -> LayerSettings:
        """The same layer with the chunks of a stage.

        Raises:
            InputError: Its memories cannot have such chunks.
        """
        rule, *local_rules = with_chunks(self.rules, stage)
        return replace(self, rule=rule, local_rules=tuple(local_rules))
