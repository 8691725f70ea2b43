"""Settings of episodes: a memory is filled, and then asked for what it was filled with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atlas.config.memory_train import Floor
from atlas.config.plan import Positive, Settings, Share


class PhaseGates(Settings):
    """The memory's share in a layer's output in one phase of an episode."""

    target: Share = Field(description="below it, its mean over a batch is pulled up")
    floor: Floor = Field(
        0.0, description="the least it may be; where train.floor is higher, that one holds"
    )


class EpisodeSettings(Settings):
    """One step is one episode: storage, then retrieval of the same batches, masked."""

    batches: Positive = Field(10, description="batches of each phase")
    through: Positive = Field(
        10, description="the last so many storage batches learn from retrieval; earlier ones do not"
    )
    masked: Annotated[float, Field(gt=0, le=1)] = Field(
        0.15, description="share of a text's words that are asked for, at least one"
    )
    weight: Annotated[float, Field(ge=0)] = Field(
        10.0, description="of the loss at masks beside that of the next token in storage"
    )
    between: Literal["reset", "keep"] = Field(
        "reset", description="whether the next episode starts with an empty memory or goes on"
    )
    storage: PhaseGates = PhaseGates(target=0.3)
    retrieval: PhaseGates = PhaseGates(target=0.5)
    pull: Annotated[float, Field(ge=0)] = Field(
        0.1, description="weight of the squared distance below a target; 0: targets do nothing"
    )
