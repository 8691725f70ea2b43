"""Settings of what clients' devices can hold: memory, and the ranks granted within it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from atlas.config.base import Positive, Settings, Share

MB = 2**20


class DeviceSettings(Settings):
    """A kind of device: the memory it leaves for training."""

    memory_mb: Annotated[float, Field(gt=0)] | None = Field(
        None, description="memory left for training, backbone included"
    )
    room: Share | None = Field(
        None,
        description="instead of memory_mb: 0 holds the smallest ranks everywhere, 1 the largest",
    )
    largest_rank: Positive | None = Field(None, description="rank ceiling, whatever would fit")

    @model_validator(mode="after")
    def _one_measure(self) -> DeviceSettings:
        if (self.memory_mb is None) == (self.room is None):
            raise ValueError("set exactly one of memory_mb and room")
        return self


def _profile(memory_mb: float, largest_rank: int | None = None) -> DeviceSettings:
    return DeviceSettings(memory_mb=memory_mb, room=None, largest_rank=largest_rank)


PROFILES = {
    "phone": _profile(256, 8),
    "tablet": _profile(512, 16),
    "laptop": _profile(2048, 32),
    "workstation": _profile(8192),
    "gpu-8gb": _profile(7168),
    "gpu-24gb": _profile(22528),
    "gpu-80gb": _profile(77824),
}
"""Devices by name. Memory is what is left beside the system; a GPU loses some to its runtime."""


class SplitWeights(Settings):
    """What counts in the choice of a split point."""

    memory: Annotated[float, Field(ge=0)] = Field(1.0, description="share of the budget used")
    traffic: Annotated[float, Field(ge=0)] = Field(1.0, description="activations sent")
    importance: Annotated[float, Field(ge=0)] = Field(
        1.0, description="how much of what matters is trained on the client"
    )
    balance: Annotated[float, Field(ge=0)] = Field(
        0.0, description="how evenly blocks are shared with the server"
    )


class SplitSettings(Settings):
    """How many blocks a client runs itself; a server runs the rest."""

    point: Positive | Literal["auto"] | None = Field(
        None, description="blocks on the client; auto: per device; null: all of them"
    )
    weights: SplitWeights = SplitWeights()


class RankSettings(Settings):
    """How many ranks each layer of each client gets."""

    method: Literal["fixed", "importance", "uniform", "exhaustive"] = Field(
        "fixed",
        description="fixed: adapter.rank and adapter.ranks; others fill the device's memory",
    )
    choices: list[Positive] = Field(
        default=[4, 8, 16, 32, 64], min_length=1, description="ranks a layer may get, rising"
    )
    budget: Annotated[float, Field(gt=0)] | None = Field(
        None, description="MB left for training on every client, over what its device says"
    )
    devices: list[str] = Field(
        default_factory=list, description="devices dealt to each task's clients in turn"
    )
    ceilings: Literal["kept", "ignored"] = Field("kept", description="the devices' largest_rank")
    complexity: Share = Field(
        0.5, description="share of the adapters' memory that the client's cluster must earn"
    )
    depth: Annotated[float, Field(ge=0)] = Field(
        0.5, description="how much more the last block counts than an equal one at the bottom"
    )

    @model_validator(mode="after")
    def _rising(self) -> RankSettings:
        if sorted(set(self.choices)) != self.choices:
            raise ValueError(f"choices: {self.choices} given; ranks must rise")
        return self
