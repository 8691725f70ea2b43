"""The settings of a run that trains a model with a memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from atlas.config.plan import Count, Device, Positive, Settings, Share
from atlas.config.rule import Rule
from atlas.config.training import CLIENT_ID

ArmName = Literal["memory", "window", "detached"]
Floor = Annotated[float, Field(ge=0, lt=1)]


class SequenceSettings(Settings):
    """What is read: pairs and then questions far from them, or the bytes of a text."""

    name: Literal["recall", "text"] = Field(
        "recall", description="pairs and then questions, or a file of text byte by byte"
    )
    length: Annotated[int, Field(ge=4)] = Field(64, description="tokens of a sequence")
    vocabulary: Annotated[int, Field(ge=4)] | None = Field(
        None, description="recall: half keys, half values; default: 64"
    )
    pairs: Positive | None = Field(
        None, description="recall: pairs of a sequence, each asked for once; default: 8"
    )
    file: Path | None = Field(None, description="text: the file, in ATLAS_DATA or anywhere")
    test: Positive = Field(512, description="sequences of validation and test")

    @model_validator(mode="after")
    def _own_keys(self) -> SequenceSettings:
        own = {"recall": ("vocabulary", "pairs"), "text": ("file",)}
        for name, keys in own.items():
            given = [key for key in keys if getattr(self, key) is not None]
            if given and name != self.name:
                raise ValueError(f"{given[0]}: not a setting of {self.name}, but of {name}")
        if self.name == "text" and self.file is None:
            raise ValueError("file: missing; a task named text reads one")
        return self


class MemoryModelSettings(Settings):
    """The model; see docs/memory-model.md."""

    width: Positive = Field(64, description="of a token")
    blocks: Positive = Field(2, description="blocks of the model")
    heads: Positive = Field(2, description="heads of attention and memory")
    feed_forward: Positive = Field(128, description="width of the feed-forward part")
    feed_forward_kind: Literal["swiglu", "continuum"] = Field(
        "swiglu", description="continuum: levels that learn at different speeds"
    )
    window: Positive = Field(8, description="tokens that attention sees, itself included")
    placement: Literal["gate", "context", "layer"] = Field(
        "gate", description="where the memory stands: beside attention, before it, or in its place"
    )
    rule: Rule = Rule()
    local_rules: list[Rule] = Field(
        default_factory=list, description="rules of memories that start anew every local_shard"
    )
    local_shard: Positive | None = Field(None, description="tokens of a shard")
    degree: Positive = Field(1, description="of the polynomial features of keys and queries")
    convolution: Positive = Field(4, description="tokens that the convolution sees")
    persistent: Count = Field(1, description="learned tokens of each layer")
    spread: Annotated[float, Field(gt=0)] | None = Field(
        None, description="of the weights at the start; null: one over the root of the width"
    )


class StageSettings(Settings):
    """Chunk sizes up to a share of training."""

    until: Share = Field(description="share of training at which the stage ends")
    chunk: Positive = Field(description="of the memory")
    local: list[Positive] = Field(default_factory=list, description="of the local ones")


class MemoryTrainSettings(Settings):
    """Training; a round is `round_steps` steps of every arm, and is then tested and saved."""

    steps: Positive = Field(600, description="steps of each arm")
    round_steps: Positive = Field(50, description="steps of a round")
    batch: Positive = Field(32, description="sequences per step")
    lr: Annotated[float, Field(gt=0, le=1)] = Field(3e-3, description="learning rate")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "cosine", description="how the learning rate falls over the whole run"
    )
    warmup: Share = Field(0.05, description="share of the run over which lr rises from zero")
    weight_decay: Annotated[float, Field(ge=0, le=1)] = Field(
        0.01, description="of matrices only, as in AdamW"
    )
    clip: Annotated[float, Field(gt=0)] | None = Field(
        1.0, description="largest gradient norm; null: none"
    )
    observe_every: Positive = Field(10, description="steps between two looks at the memory")
    mix_floor: list[tuple[Share, Floor]] = Field(
        default=[(0.0, 0.30), (0.5, 0.10), (1.0, 0.05)],
        min_length=1,
        description="[progress, floor] points: the least share of the memory in a layer's output",
    )

    stages: list[StageSettings] = Field(
        default_factory=list,
        description="chunk sizes by progress, changed between rounds; empty: those of the rules",
    )

    @model_validator(mode="after")
    def _rising(self) -> MemoryTrainSettings:
        if not _rise([share for share, _ in self.mix_floor]):
            raise ValueError("mix_floor: the first numbers of its points must rise")
        if not _rise([stage.until for stage in self.stages]):
            raise ValueError("stages: their `until` must rise")
        return self


def _rise(numbers: Sequence[float]) -> bool:
    return all(before < after for before, after in pairwise(numbers))


class MemoryConfig(Settings):
    """A whole training run of models with and without a memory."""

    kind: Literal["memory"] = Field("memory", description="models with and without a memory")
    name: Annotated[str, Field(pattern=CLIENT_ID)] = Field(
        "memory", description="name of the run folder"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="every draw of the run follows it")
    device: Device = Field("cpu", description="what models run on")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="torch threads; default: all cores"
    )
    task: SequenceSettings = SequenceSettings()
    arms: list[ArmName] = Field(
        default=["memory", "window"],
        min_length=1,
        description="memory; window: attention alone, as many parameters; detached: a memory "
        "that is written outside the graph",
    )
    model: MemoryModelSettings = MemoryModelSettings()
    train: MemoryTrainSettings = MemoryTrainSettings()

    @property
    def rounds(self) -> int:
        """How many rounds the steps make."""
        return -(-self.train.steps // self.train.round_steps)

    @model_validator(mode="after")
    def _sensible(self) -> MemoryConfig:
        if len(set(self.arms)) < len(self.arms):
            raise ValueError("arms: each may be given once")
        if self.model.width % (2 * self.model.heads):
            raise ValueError("model.width: must be a multiple of twice model.heads")
        return self
