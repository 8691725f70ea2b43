"""Settings of what clients train: the frozen model, the adapters on it, and local training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from atlas.config.plan import Positive, Settings, Share

CLIENT_ID = r"^[A-Za-z0-9_-]{1,64}$"
ClientId = Annotated[str, Field(pattern=CLIENT_ID)]
Weighing = Literal["examples", "metric"]
"""Whether examples count alike in a loss, or as in their task's metric."""


class BackboneSettings(Settings):
    """Which frozen model the clients share."""

    name: str = Field(
        "minilm",
        description="minilm, smollm2, tiny, tiny-causal, a folder, or a hub id; @N behind it keeps "
        "its lowest N blocks",
    )
    deal: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        description="backbones dealt in turn to the clients of each task that name none; empty: "
        "`name` for all",
    )
    allow_hub: bool = Field(False, description="may fetch `name` from the model hub")
    dtype: Literal["float32", "float64", "bfloat16"] = Field(
        "float32", description="numbers that weights and adapters are held in"
    )
    autocast: Literal["bfloat16"] | None = Field(
        None, description="precision of products in the blocks with adapters; null: that of dtype"
    )
    max_length: Annotated[int, Field(ge=4, le=8192)] = Field(64, description="tokens kept")
    max_new_tokens: Annotated[int, Field(ge=1, le=4096)] = Field(
        64, description="length limit of generated answers"
    )
    compile: Literal["inductor", "aot_eager"] | None = Field(
        None, description="torch.compile's backend for the part of blocks after attention"
    )

    quant: Literal["nf4"] | None = Field(
        None,
        description="nf4: four bits for each weight of the blocks (extra `quant`); less memory, "
        "more time",
    )

    @model_validator(mode="after")
    def _quant_fits(self) -> BackboneSettings:
        if self.quant is not None and (self.dtype == "float64" or self.compile is not None):
            raise ValueError(
                f"quant: {self.quant} given with dtype {self.dtype} and compile "
                f"{self.compile or 'null'}; allowed: float32 or bfloat16, and no compile"
            )
        return self

    @model_validator(mode="after")
    def _autocast_acts(self) -> BackboneSettings:
        if self.autocast is not None and self.dtype != "float32":
            raise ValueError(
                f"autocast: {self.autocast} given, but it changes nothing of dtype {self.dtype}; "
                "allowed: null, or dtype float32"
            )
        return self


class AdapterSettings(Settings):
    """Where the low-rank adapters sit and how large they are."""

    modules: list[str] = Field(
        default=["query", "value"],
        min_length=1,
        description="linear modules: query, key, value, output, up, down, gate, or their own names",
    )
    blocks: Positive = Field(2, description="adapters sit in so many blocks")
    placement: Literal["last", "spread"] = Field(
        "last", description="which ones: the last, or evenly over the depth, the last among them"
    )
    sends: Literal["local", "whole"] | None = Field(
        None,
        description="which core travels where one stands beside it: one's own, or both as the gate "
        "weighs them; null: whole under gate scalar, else local",
    )
    others: Annotated[int, Field(ge=0)] = Field(
        0,
        description="kind pq: so many of the last blocks without a core get plain adapters, which "
        "are mixed among equal backbones only",
    )
    kind: Literal["lora", "pq"] | None = Field(
        None,
        description="lora: A and B train; pq: a core P, Q between frozen A and B, the same size "
        "for every backbone; null: as the strategy says",
    )
    gate: Literal["scalar", "input"] = Field(
        "scalar",
        description="what weighs one's own adapter and the one delivered beside it: a number of "
        "each module, or one that depends on the token",
    )
    rank: Annotated[int, Field(ge=1, le=512)] = Field(8, description="rank of every client")
    ranks: dict[ClientId, int | list[int]] = Field(
        default_factory=dict, description="ranks of single clients: one number, or one per layer"
    )
    alpha: Annotated[float, Field(gt=0)] = Field(
        16.0, description="a layer adds (alpha / rank) B A"
    )


class EarlyStopSettings(Settings):
    """Ends a client's local training once its validation loss stops falling."""

    patience: Positive = Field(1, description="epochs without a better validation loss")


class TrainSettings(Settings):
    """Local training of one round."""

    epochs: Positive | None = Field(
        1, description="local epochs per round; null where `steps` are given"
    )
    steps: Positive | None = Field(None, description="local steps per round instead of epochs")
    batch: Positive = Field(16, description="examples per step")
    lr: Annotated[float, Field(gt=0, le=1)] = Field(2e-3, description="learning rate of adapters")
    head_lr: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="learning rate of the head; default: lr"
    )
    gate_lr: Annotated[float, Field(gt=0, le=10)] | None = Field(
        None, description="learning rate of gates; default: lr"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rate falls over the whole run"
    )
    warmup: Share = Field(0.0, description="share of the run over which lr rises from zero")
    round_decay: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="factor on the learning rate from round to round"
    )
    weight_decay: Annotated[float, Field(ge=0, le=1)] = Field(
        0.01, description="decoupled, as in AdamW"
    )
    clip: Annotated[float, Field(gt=0)] | None = Field(
        1.0, description="largest gradient norm of a client; null: none"
    )
    keep_moments: bool = Field(False, description="carry optimiser moments over rounds")
    weigh: Weighing = Field(
        "examples",
        description="what counts alike in the loss: examples, or classes where the task's metric "
        "minds rare ones (every metric but accuracy)",
    )
    anchor: Annotated[float, Field(ge=0)] = Field(
        0.1, description="pull toward the anchor: fedprox's mu, ditto's lambda"
    )
    early_stop: EarlyStopSettings | None = Field(
        None, description="end local training once the validation loss stops falling; null: never"
    )
    stacked: bool = Field(True, description="false trains clients one by one (the slow twin)")
    prefix_cache_mb: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="memory for outputs of the blocks below the adapters; beyond it they are in a "
        "temporary file; 0: recompute; null: 16, on an accelerator 2048",
    )
    prefix_format: Literal["exact", "half"] = Field(
        "exact", description="how they are kept; half: 16 bits, errors up to 1 in 2,000"
    )
    prefix_holds: Literal["inputs", "projections"] | None = Field(
        None,
        description="of the first block with adapters: its input, or also its frozen queries, keys "
        "and values, which take more room and less time; null: projections, on an accelerator "
        "inputs",
    )

    @model_validator(mode="before")
    @classmethod
    def _steps_alone(cls, given: Any) -> Any:  # noqa: ANN401 - as yet unchecked
        """The default of epochs is for those who do not say how long to train."""
        if isinstance(given, dict) and given.get("steps") is not None and "epochs" not in given:
            return {**given, "epochs": None}
        return given

    @model_validator(mode="after")
    def _one_length(self) -> TrainSettings:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                "set exactly one of epochs and steps; the other must be null "
                f"(epochs: {self.epochs or 'null'}, steps: {self.steps or 'null'} given)"
            )
        return self
