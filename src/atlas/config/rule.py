"""The declaration of a memory's rule: how a memory learns while it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Literal, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from atlas.config.messages import allowed, show
from atlas.config.plan import Positive
from atlas.errors import InputError

Weighting = Literal["added", "both", "step", "none"]


@dataclass(frozen=True)
class Rule:
    """How a memory learns while it reads; see docs/memory.md for the symbols.

    The only declaration of a rule: settings files are checked against it, `AtlasConfig` holds its
    keyword arguments, and kernels are given it as it is.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    gradient: Annotated[
        Literal["exact", "chunk-start"],
        Field(
            description="where errors are measured. exact: M' = M_{t-1}; chunk-start: M' is the "
            "memory at the start of the token's chunk, so the chunk is part of the function"
        ),
    ] = "exact"
    chunk: Annotated[
        Positive, Field(description="tokens per chunk; for exact a matter of speed alone")
    ] = 64
    window: Annotated[
        Positive, Field(description="c, the tokens whose errors count at each step")
    ] = 1
    weighting: Annotated[
        Weighting,
        Field(
            description="added: w_t = 1 - eta_t, so that no step counts for more than theta_t "
            "however long it is carried. step: theta_t is multiplied by 1 - eta_t instead, and "
            "w_t = 1. both: S_t is a running mean and is added with weight 1 - eta_t; slower, and "
            "the one that withstands gates in resonance with the keys. none: w_t = 1, Titans as "
            "printed. step and none diverge under changing gates"
        ),
    ] = "added"
    read: Annotated[
        Literal["after", "before"],
        Field(description="after the write of the same token, or before it"),
    ] = "after"
    learner: Annotated[
        Literal["momentum", "newton-schulz", "descent"],
        Field(
            description="newton-schulz orthogonalises S_t before it is added; theta_t then scales "
            "what is added, as the size of S_t no longer counts. descent: no momentum, Miras' own. "
            "Both need chunk-start gradients"
        ),
    ] = "momentum"
    queries: Annotated[
        Literal["plain", "projected"],
        Field(description="projected: onto the keys seen so far"),
    ] = "plain"
    window_errors: Annotated[
        Literal["mean", "sum"],
        Field(
            description="what a step takes of the window's errors. mean: theta_t bounds the step "
            "whatever c is; sum: the Omega rule as printed, c times as far"
        ),
    ] = "mean"
    momentum: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None,
        Field(description="eta, the same for every token; null: a gate that reads the token"),
    ] = None
    forgetting: Annotated[
        Literal["gate", "local-global"],
        Field(
            description="gate: alpha_t forgets and theta_t is the step, each for itself. "
            "local-global: both come from one trade-off, theta_t being how far a step may change "
            "the memory (local retention), (1 - alpha_t) / alpha_t how large it may be (global)"
        ),
    ] = "gate"
    bias: Annotated[
        Literal["l2", "lp", "huber"],
        Field(
            description="Miras: which error counts. lp: its entries to the power bias_power; "
            "huber: no longer than a threshold that reads the token"
        ),
    ] = "l2"
    bias_power: Annotated[
        Annotated[float, Field(ge=1)], Field(description="p of the lp bias; 3 is Moneta's")
    ] = 3.0
    retention: Annotated[
        Literal["l2", "lq", "kl", "elastic-net"],
        Field(
            description="Miras: what forgetting does. lq: weights are divided by a power of their "
            "norm; kl: they stay a distribution over inputs; elastic-net: small ones become zero"
        ),
    ] = "l2"
    retention_power: Annotated[
        Annotated[float, Field(ge=2)], Field(description="q of lq retention; 4 is Moneta's")
    ] = 4.0
    retention_mass: Annotated[
        Annotated[float, Field(gt=0)],
        Field(description="kl: what the weights of an output sum to; 1 is Memora's"),
    ] = 1.0
    retention_threshold: Annotated[
        Annotated[float, Field(ge=0)],
        Field(description="elastic-net: what each token takes off every weight"),
    ] = 1e-3
    architecture: Annotated[
        Literal["matrix", "mlp"],
        Field(description="Miras: whose weights are the memory; mlp: gelu(x W1) W2"),
    ] = "matrix"
    expansion: Annotated[
        Positive, Field(description="mlp: hidden units for each channel of a head")
    ] = 2
    anchor: Annotated[
        Literal["zero", "start"],
        Field(
            description="Miras: where forgetting leads. zero, as printed, kills a memory of two "
            "layers; start: where the memory started"
        ),
    ] = "zero"

    def __post_init__(self) -> None:
        """Refuse what is not a rule, also where no settings file was read."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default or isinstance(value, bool):
                _check(field.name, value)
        for name, (key, choice) in _SETTINGS_OF.items():
            own = getattr(self, name)
            if getattr(self, key) != choice and own != Rule.__dataclass_fields__[name].default:
                raise InputError(f"{name}: {show(own)}; allowed with {key}: {choice} only")
        if self.learner != "momentum" and self.gradient == "exact":
            raise InputError(f"learner: {self.learner}; allowed with gradient: chunk-start only")
        for name, only in (("momentum", None), ("weighting", "added")):
            own = getattr(self, name)
            if self.learner == "descent" and own != only:
                raise InputError(f"{name}: {own}; allowed with learner: descent: {show(only)} only")
        self._check_family()

    @property
    def family(self) -> Literal["delta", "miras"]:
        """`delta`: that of Titans and ATLAS; `miras`: one that only `memory.miras` computes."""
        return "miras" if self.of_miras else "delta"

    @property
    def of_miras(self) -> str:
        """The first choice that is Miras' own, as a setting; empty if there is none."""
        return next((f"{k}: {v}" for k, v in self._choices() if v not in _DELTA), "")

    def _choices(self) -> Iterator[tuple[str, str]]:
        return ((key, getattr(self, key)) for key in _FOUR_CHOICES)

    def _check_family(self) -> None:
        reason = self.of_miras
        if not reason:
            if self.anchor != "zero":
                own = "bias, retention, learner or architecture"
                raise InputError(f"anchor: {self.anchor}; allowed with a {own} of Miras only")
            return
        for key, only in _MIRAS_ONLY.items():
            if getattr(self, key) != only:
                value = show(getattr(self, key))
                raise InputError(f"{key}: {value}; allowed with {reason}: {show(only)} only")


_FOUR_CHOICES = ("bias", "retention", "architecture", "learner")
_DELTA = ("l2", "matrix", "momentum", "newton-schulz")
"""Of the four choices those that Titans and ATLAS make."""
_MIRAS_ONLY = {"gradient": "chunk-start", "window": 1, "read": "after", "queries": "plain"}
"""What every other rule must have: there is no exact parallel form, nor a window, for it."""
_SETTINGS_OF = {
    "bias_power": ("bias", "lp"),
    "retention_power": ("retention", "lq"),
    "retention_mass": ("retention", "kl"),
    "retention_threshold": ("retention", "elastic-net"),
    "expansion": ("architecture", "mlp"),
}
"""Settings that count for one choice alone."""
_KINDS = get_type_hints(Rule, include_extras=True)
"""Of every field what it may be, as it is declared above."""


def _check(name: str, value: object) -> None:
    kind: TypeAdapter[object] = TypeAdapter(_KINDS[name])
    try:
        kind.validate_python(value, strict=True)
    except ValidationError as error:
        choices = allowed({}, kind.json_schema())
        raise InputError(f"{name}: {show(value)}; allowed: {choices}") from error
