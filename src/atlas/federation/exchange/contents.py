"""What the messages of every task hold, fact by fact.

`transport.CONTRACTS` says which task asks and answers with which of these, and with which of the
tensors of `tensor_names`. A fact without a default is always there; whatever is named in neither is
in no message. Numbers and texts are bounded by what any run could mean; what a single run expects
beyond that is told to `guard.check_reply`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from atlas.config.plan import Count, FingerprintSettings, Positive, RelevanceSettings
from atlas.federation.exchange.compression import Form
from atlas.federation.exchange.message import Message, MessageError, printable

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much of a mixture a client may take."""
ARMS = {"validation": ("held",), "test": ("final", "alone")}
"""Which adapters are scored on which data."""
LARGEST = 1e30
"""Of a loss or a length."""
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Length = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=0, le=2**53)]
"""Bytes, tokens or steps."""
Examples = Annotated[int, Field(ge=1, le=10**9)]
Name = Annotated[str, Field(pattern="^[!-~]{1,200}$")]
"""A short text that can be printed: of a module, a metric or a client."""
MOST = 2**16
"""Entries of a list or an object."""


class Facts(BaseModel):
    """The facts of a message: these and no others, of these types, none converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True)
class Content:
    """What a message may hold.

    Attributes:
        facts: Its facts.
        tensors: Shape and meaning of tensors by name, a pattern that the whole name matches.
            Which of them are there, and how large, depends on the client.
    """

    facts: type[Facts] = Facts
    tensors: Mapping[str, str] = field(default_factory=dict)

    def check(self, message: Message) -> None:
        """Hold a message against this.

        Raises:
            MessageError: The first thing about it that is not as it should be.
        """
        try:
            self.facts.model_validate(message.facts)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = "".join(f"{part}: " for part in first["loc"])
            raise MessageError(printable(f"facts: {where}{first['msg']}")) from error
        for name in sorted(message.tensors):
            if not any(re.fullmatch(pattern, name) for pattern in self.tensors):
                raise MessageError(f"tensors: {name!r} does not belong here")


class FingerprintRequest(Facts):
    """What a client is to tell of its data."""

    settings: FingerprintSettings = Field(description="every setting by name")


class FingerprintReply(Facts):
    """How much its sketches stand for."""

    examples: Examples = Field(description="training examples that were used")
    norms: dict[Name, Annotated[dict[Name, Length], Field(max_length=MOST)]] = Field(
        max_length=MOST,
        description="by part and layer: length of the gradient, before it is scaled to one",
    )


class CapacityReply(Facts):
    """What a batch of a client's longest training texts holds."""

    lengths: list[Annotated[Size, Field(ge=1)]] = Field(
        min_length=1, max_length=MOST, description="tokens of each of them"
    )
    answers: list[Size] = Field(
        max_length=MOST,
        description="tokens of as many answers, longest first; none for tasks with labels",
    )


class AssignRequest(Facts):
    """What a client is granted."""

    ranks: list[Positive] = Field(description="one for every adapted module, in their order")
    point: Positive | None = Field(description="blocks the client runs itself; null: all")
    trial: bool = Field(description="whether a training step is to be measured")


class AssignReply(Facts):
    """What training takes."""

    bytes: Size | None = Field(
        description="weights and adapter on the client's side, and the most memory that one step "
        "on its longest texts took beside them; null without a trial"
    )


SHA256 = "^[0-9a-f]{64}$"


class CompressRequest(Facts):
    """How a reply is to be compressed; see `exchange.compression`."""

    form: Form = Field(description="what the change since the last reply is rounded or cut to")
    share: Annotated[float, Field(gt=0, le=1)] = Field(description="topk: how much of it is sent")
    feedback: bool = Field(description="whether what earlier replies left out is added")
    base: str = Field(
        pattern=SHA256,
        description="`adapter_sha256` of what the server has of all that is to be sent; if the "
        "client remembers otherwise, it sends all as it is",
    )


class FitRequest(Facts):
    """Which round it is."""

    round: Positive = Field(description="addresses batches and learning rate")
    open: list[Count] | None = Field(
        None, description="which modules are sent back, by number; null: all"
    )
    measure: Literal["gradient", "product", "noise"] | None = Field(
        None,
        description="what is to be told beside the loss: what modules count, by `gradient` or "
        "`product`, or the `noise` of the update; null: nothing",
    )
    compress: CompressRequest | None = Field(
        None, description="there if the reply is to be compressed: how"
    )


class UpdateNoise(Facts):
    """Variance of a round's update if its batches had been drawn afresh."""

    adapter: Length = Field(description="of all dW together")
    head: Length = Field(description="of the head")


class FitReply(Facts):
    """How training went; all of the held adapter, nothing of its shadow or personal twin."""

    examples: Examples = Field(description="all training examples of the client: its weight")
    steps: Annotated[Size, Field(ge=1)] = Field(description="optimiser steps made")
    loss: Number | None = Field(
        description="mean training loss of the steps, without any penalty; null if not finite"
    )
    salience: list[Length] = Field(
        default_factory=list,
        max_length=MOST,
        description="there if asked for: what each adapted module counted in training, summed over "
        "its steps",
    )
    noise: UpdateNoise | None = Field(
        None, description="there if asked for and batches have two halves: the update's noise"
    )
    passes: Annotated[Length, Field(gt=0)] | None = Field(
        None, description="there with noise: how often the steps went over the client's examples"
    )
    beta: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=list,
        max_length=MOST,
        description="there if something may stand beside the adapter: what that counts in every "
        "adapted module, after training",
    )
    form: Form | None = Field(
        None, description="there if the adapter is compressed: into which tensors"
    )
    split_up: Size = Field(
        0, description="there if blocks are split: bytes of the messages with activations"
    )
    split_down: Size = Field(
        0,
        description="there if blocks are split: bytes of the messages with gradients; 0 if nothing "
        "is trained below the split",
    )

    @model_validator(mode="after")
    def _both_or_neither(self) -> FitReply:
        if len({"split_up", "split_down"} & self.model_fields_set) == 1:
            raise ValueError("split_up and split_down come together")
        if (self.noise is None) != (self.passes is None):
            raise ValueError("noise and passes come together")
        return self


class DeliverRequest(Facts):
    """What a client is offered."""

    round: Positive = Field(description="the round whose mixtures these are")
    offers: Count = Field(description="mixtures to choose from; 0: keep what you hold")


class SignatureRequest(Facts):
    """What a client is to tell of itself after a fit."""

    round: Positive = Field(description="addresses the draw of examples and the noise")
    kind: Literal["gradient", "representation"] = Field(
        description="of what: its training examples at a shared probe, or its adapted model"
    )
    settings: RelevanceSettings = Field(description="every setting by name")


class SignatureReply(Facts):
    """What was done to the signature before it was sent."""

    examples: Examples = Field(description="training examples, or anchor texts, that were used")
    norm: Length = Field(description="its length before it was clipped")
    clip: Annotated[Length, Field(gt=0)] | None = Field(
        description="largest length allowed; null if nothing was clipped"
    )
    noise: Length = Field(description="standard deviation of the noise on every number")


def _one_of_shares(value: float) -> float:
    if value not in SHARES:
        raise ValueError(f"{value} is none of {SHARES}")
    return value


TakenShare = Annotated[float, AfterValidator(_one_of_shares)]


class DeliverReply(Facts):
    """What a client took."""

    accept: TakenShare = Field(description="it now holds (1 - accept) own + accept mixture")
    pick: Count = Field(description="of which offer, counted from 0; 0 if nothing was taken")
    sha256: str = Field(
        pattern=SHA256,
        description="`adapter_sha256` of the part of its held adapter that travels (with accept 1 "
        "that of the offer); where a mixture was merged, of the offer; where it stands beside the "
        "adapter, of what now does, as far as it was offered",
    )


class EvaluateRequest(Facts):
    """What is to be scored."""

    split: Literal["validation", "test"] = Field(description="on which data")
    arm: Literal["held", "final", "alone"] = Field(description="which adapter; see `ARMS`")
    beside: Literal["alone"] | None = Field(
        None, description="of validation data: the shadow is scored as well; null: it is not"
    )

    @model_validator(mode="after")
    def _arm_of_split(self) -> EvaluateRequest:
        if self.arm not in ARMS[self.split]:
            raise ValueError(f"{self.split} data is for {' and '.join(ARMS[self.split])}")
        if self.beside and self.split != "validation":
            raise ValueError("on test data every adapter is asked for by itself")
        return self


ScoresOf = dict[Name, Annotated[dict[Name, Number | None], Field(max_length=MOST)]]
"""Metrics by whose data it is."""


class EvaluateReply(Facts):
    """Scores."""

    members: ScoresOf = Field(
        max_length=MOST,
        description="metrics by whose data it is: of validation data the client itself, of test "
        "data everybody who shares its adapter. `loss` always, null if it is not finite; "
        "`accuracy` and `score`, the task's own metric, unless it is validation data of a task "
        "without labels",
    )
    alone: ScoresOf = Field(
        default_factory=dict,
        max_length=MOST,
        description="there if asked for: the same of the client's shadow",
    )

    @model_validator(mode="after")
    def _are_scores(self) -> EvaluateReply:
        for scores in (*self.members.values(), *self.alone.values()):
            if "loss" not in scores:
                raise ValueError("members: a loss is missing")
            others = [value for name, value in scores.items() if name != "loss"]
            if not all(value is not None and -1 <= value <= 1 for value in others):
                raise ValueError("members: a score is not from -1 to 1")
        return self


def tell_number(value: float) -> float | None:
    """A loss or a score as a reply has it: null if it is not finite."""
    return value if abs(value) <= LARGEST else None


def read_scores(told: Mapping[str, float | None]) -> dict[str, float]:
    """Scores from a reply to `evaluate`; NaN for a loss that was not finite."""
    return {name: math.nan if value is None else value for name, value in told.items()}


class AdapterRequest(Facts):
    """Which adapter is asked for."""

    arm: Literal["final"] = Field(description="the one that counts at the end of the run")
    form: Literal["plain", "own"] = Field(
        "plain",
        description="A and B that come to the same; or its own tensors, and beside them those that "
        "stand beside its adapter",
    )


class SavedState(Facts):
    """What is told of a client's saved state."""

    accept: TakenShare | None = Field(description="the share last taken; null if nothing ever was")
    ready: list[Name] = Field(
        default_factory=list,
        description="modules for which something was delivered to stand beside its adapter",
    )
