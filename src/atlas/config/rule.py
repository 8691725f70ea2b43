"""The declaration of a memory's rule: how a memory learns while it reads."""

from __future__ import annotations

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
        Literal["momentum", "newton-schulz"],
        Field(
            description="newton-schulz orthogonalises S_t before it is added; theta_t then scales "
            "what is added, as the size of S_t no longer counts. Needs chunk-start gradients"
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

    def __post_init__(self) -> None:
        """Refuse what is not a rule, also where no settings file was read."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default or isinstance(value, bool):
                _check(field.name, value)
        if self.learner == "newton-schulz" and self.gradient == "exact":
            raise InputError("learner: newton-schulz; allowed with gradient: chunk-start only")


_KINDS = get_type_hints(Rule, include_extras=True)
"""Of every field what it may be, as it is declared above."""


def _check(name: str, value: object) -> None:
    kind: TypeAdapter[object] = TypeAdapter(_KINDS[name])
    try:
        kind.validate_python(value, strict=True)
    except ValidationError as error:
        choices = allowed({}, kind.json_schema())
        raise InputError(f"{name}: {show(value)}; allowed: {choices}") from error
