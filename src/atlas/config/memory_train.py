"""Settings of how a memory run trains: steps, rates, stability, and floors of the gates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from atlas.config.plan import Count, Positive, Settings, Share

Floor = Annotated[float, Field(ge=0, lt=1)]


def rise(numbers: Sequence[float]) -> bool:
    """Whether each is above the one before."""
    return all(before < after for before, after in pairwise(numbers))


class StageSettings(Settings):
    """Chunk sizes up to a share of training."""

    until: Share = Field(description="share of training at which the stage ends")
    chunk: Positive = Field(description="of the memory")
    local: list[Positive] = Field(default_factory=list, description="of the local ones")


class FloorSettings(Settings):
    """The least share of the memory in a layer's output, layer by layer, over training."""

    points: list[tuple[Count, Floor]] = Field(
        default=[(0, 0.30), (10_000, 0.10), (30_000, 0.05)],
        min_length=1,
        description="[step, floor]: from that step on",
    )
    span: Positive = Field(
        40_000, description="a run of fewer steps takes the same shares of its own length"
    )
    shape: Literal["stairs", "ramp"] = Field(
        "stairs", description="ramp: straight lines between the points"
    )

    @model_validator(mode="after")
    def _rising(self) -> FloorSettings:
        steps = [step for step, _ in self.points]
        if steps[0] != 0 or not rise(steps):
            raise ValueError("points: the steps must begin at 0 and rise")
        return self


class AlertSettings(Settings):
    """When an `alert` is told, once whenever a layer's measure crosses its threshold."""

    risk: Share = Field(
        0.9, description="collapse risk above it: 1 is a mean share at its floor, 0 one of 1"
    )
    dead: Share = Field(
        0.5, description="share of the gate's channels above it that stay at the floor"
    )
    share: Share = Field(0.05, description="mean share of the memory below it")


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
    optimiser: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: for matrices, and AdamW for the rest"
    )
    loss: Literal["softmax", "stablemax"] = Field(
        "softmax", description="stablemax: does not saturate; see ops/stability.py"
    )
    gradient: Literal["plain", "perpendicular"] = Field(
        "plain", description="perpendicular: of matrices, without the part along the weights"
    )
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="of several processes (torchrun): ddp: each has the whole model; fsdp: each "
        "has a part of every weight, for models that one device does not hold",
    )
    observe_every: Positive = Field(10, description="steps between two looks at the memory")
    floor: FloorSettings = FloorSettings()
    alerts: AlertSettings = AlertSettings()
    stages: list[StageSettings] = Field(
        default_factory=list,
        description="chunk sizes by progress, changed between rounds; empty: those of the rules",
    )

    @model_validator(mode="after")
    def _rising(self) -> MemoryTrainSettings:
        if not rise([stage.until for stage in self.stages]):
            raise ValueError("stages: their `until` must rise")
        return self
