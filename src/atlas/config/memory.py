"""The settings of a run that trains a model with a memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from atlas.config.episodes import EpisodeSettings
from atlas.config.memory_task import SequenceSettings
from atlas.config.memory_train import MemoryTrainSettings
from atlas.config.plan import Count, Device, Positive, Settings, Track
from atlas.config.rule import Rule
from atlas.config.training import CLIENT_ID

ArmName = Literal["memory", "window", "detached"]


class GateStarts(Settings):
    """Where the memory's gates start, before the sigmoid."""

    alpha: float = Field(
        -4.0, description="of forgetting: at -4 half is gone after 38 tokens, at -7 after 760"
    )
    eta: float = Field(0.0, description="of momentum")
    theta: float = Field(1.0, description="of the step")
    share: float | None = Field(
        None,
        description="of the memory's share in a layer's output, which then has a bias; null: none, "
        "so that it starts at one half and depends on the token alone",
    )


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
    gates: GateStarts = GateStarts()
    spread: Annotated[float, Field(gt=0)] | None = Field(
        None, description="of the weights at the start; null: one over the root of the width"
    )


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
    report: bool = Field(True, description="write report.html at the end of the run")
    track: Track = Field("none", description="keep figures for TensorBoard or MLflow, too")
    objective: Literal["lm", "episodes"] = Field(
        "lm",
        description="lm: the next token, or the answer of recall; episodes: a memory is filled and "
        "then asked for masked words and sums",
    )
    task: SequenceSettings = SequenceSettings()
    episodes: EpisodeSettings = EpisodeSettings()
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
        if self.objective == "episodes" and self.task.name != "text":
            raise ValueError("objective: episodes; allowed with task.name: text only")
        if self.objective == "episodes" and self.train.batch < 2:
            raise ValueError("train.batch: 1; allowed with objective episodes: 2 or more streams")
        if self.objective == "episodes" and self.model.rule.retention == "elastic-net":
            # Its threshold acts at chunk ends, also while a memory is only read.
            raise ValueError(
                "model.rule.retention: elastic-net; allowed with objective episodes: l2, lq, kl"
            )
        return self
