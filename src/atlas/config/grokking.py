"""The settings of a run that trains a small model on modular arithmetic until it groks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from atlas.config.plan import Device, Positive, Settings, Track
from atlas.config.training import CLIENT_ID

GrokkingArm = Literal["grokking", "control"]
Operation = Literal["add", "subtract", "multiply", "divide"]


class ArithmeticSettings(Settings):
    """What is asked: pairs of residues of a prime."""

    modulus: Annotated[int, Field(ge=5, le=1021)] = Field(97, description="a prime")
    operations: list[Operation] = Field(
        default=["add"], min_length=1, description="what is done with the two residues"
    )
    fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.4, description="share of all pairs that is learned from; the others are held out"
    )

    @property
    def name(self) -> str:
        """In words."""
        return f"{', '.join(self.operations)} mod {self.modulus}"


class GrokkingModelSettings(Settings):
    """The model; see docs/grokking.md."""

    kind: Literal["mlp", "transformer"] = Field(
        "mlp", description="two hidden layers over one-hot residues, or one block with attention"
    )
    width: Annotated[int, Field(ge=4, le=4096)] = Field(
        128, description="of the hidden layers, or of a token"
    )


class GrokkingTrainSettings(Settings):
    """Training; a round is `round_steps` steps of every arm, and is then saved."""

    steps: Positive = Field(1000, description="steps of each arm")
    round_steps: Positive = Field(100, description="steps of a round")
    batch: Positive | None = Field(None, description="pairs per step; null: all of them")
    lr: Annotated[float, Field(gt=0, le=1)] = Field(0.01, description="learning rate")
    weight_decay: Annotated[float, Field(ge=0, le=10)] = Field(
        1.0, description="decoupled, as in AdamW; the control has none"
    )
    optimiser: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: momentum made orthogonal, for matrices"
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.98), description="of AdamW"
    )
    eps: Annotated[float, Field(gt=0, le=1)] = Field(1e-8, description="of AdamW")
    loss: Literal["softmax", "stablemax"] = Field(
        "softmax", description="stablemax: a softmax that does not saturate"
    )
    gradient: Literal["plain", "perpendicular"] = Field(
        "plain",
        description="perpendicular: without the part along the weights, which only scales logits "
        "(PerpGrad); the control is plain",
    )
    observe_every: Positive = Field(10, description="steps between two measurements")


class GrokkingConfig(Settings):
    """A whole training run on modular arithmetic."""

    kind: Literal["grokking"] = Field("grokking", description="small models that learn arithmetic")
    name: Annotated[str, Field(pattern=CLIENT_ID)] = Field(
        "grokking", description="name of the run folder"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="every draw of the run follows it")
    device: Device = Field("cpu", description="what models run on")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="torch threads; default: all cores"
    )
    report: bool = Field(True, description="write report.html at the end of the run")
    track: Track = Field("none", description="keep figures for TensorBoard or MLflow, too")
    task: ArithmeticSettings = ArithmeticSettings()
    arms: list[GrokkingArm] = Field(
        default=["grokking", "control"],
        min_length=1,
        description="grokking: as set; control: without weight decay and with plain gradients",
    )
    model: GrokkingModelSettings = GrokkingModelSettings()
    train: GrokkingTrainSettings = GrokkingTrainSettings()

    @property
    def rounds(self) -> int:
        """How many rounds the steps make."""
        return -(-self.train.steps // self.train.round_steps)

    @model_validator(mode="after")
    def _sensible(self) -> GrokkingConfig:
        if len(set(self.arms)) < len(self.arms):
            raise ValueError("arms: each may be given once")
        if len(set(self.task.operations)) < len(self.task.operations):
            raise ValueError("task.operations: each may be given once")
        if self.model.kind == "transformer" and self.model.width % 4:
            raise ValueError("model.width: must be a multiple of 4, for the transformer's heads")
        if self.train.observe_every > self.train.steps:
            raise ValueError("train.observe_every: must not be beyond train.steps")
        return self
