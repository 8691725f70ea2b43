"""Replies are checked before anything uses them; a bad one is refused with a reason.

Every reply of every task goes through `check_reply`, whoever asks: first its size, then the header,
then the facts against the task's `Content`, then the numbers of its tensors. Nothing is allocated
before it is known how large it is to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from atlas.federation.exchange.compression import Form, add_change, packed_shapes, unpack
from atlas.federation.exchange.contents import Content
from atlas.federation.exchange.message import Message, MessageError, decode, printable, read_header

SIZE_SLACK = 2**18
"""Bytes for facts and for what a header has beside its tensors."""
ENTRY = 512
"""Bytes of a header for each tensor."""
SAFETENSORS_DTYPE = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.int32: "I32",
}
Shapes = Mapping[str, tuple[int, ...]]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Refusal:
    """Why a reply was not used, short and printable."""

    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(self.reason))


@dataclass(frozen=True)
class PackedReply:
    """What a compressed reply must look like, and what it is a change of.

    Attributes:
        form: How it is compressed.
        share: topk: how much of it is sent.
        base: What the server has of every tensor.
    """

    form: Form
    share: float
    base: Mapping[str, Tensor]


@dataclass(frozen=True)
class Expected:
    """What a reply must look like.

    Attributes:
        shapes: Shape of every tensor, by name; nothing may be missing or extra. None: any that the
            task's content names.
        dtype: Their dtype.
        max_norm: Largest L2 norm of any one tensor.
        packed: Set if the tensors may come compressed instead.
        slack: Bytes for facts and header.
        odd: Says what is wrong with facts that are right for some client, but not for this one.
    """

    shapes: Shapes | None = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    max_norm: float = 1e4
    packed: PackedReply | None = None
    slack: int = SIZE_SLACK
    odd: Callable[[Mapping[str, Any]], str] | None = None

    @property
    def most_bytes(self) -> float:
        """The largest size a message of that kind can have."""
        if self.shapes is None:
            return math.inf
        numbers = sum(math.prod(shape) for shape in self.shapes.values())
        return self.dtype.itemsize * numbers + ENTRY * len(self.shapes) + self.slack


def expect_scores(
    members: Collection[str], metrics: Collection[str] = (), *, alone: bool = False
) -> Expected:
    """A reply to `evaluate` that tells of these clients, and at least these metrics of each.

    Args:
        members: The clients.
        metrics: What must be told of each.
        alone: Whether it tells the same metrics of their shadows, which else it must not.
    """
    wanted = set(members)

    def odd(facts: Mapping[str, Any]) -> str:
        told: Mapping[str, Mapping[str, object]] = facts["members"]
        if set(told) != wanted:
            return f"members: not those of {', '.join(sorted(wanted))}"
        short = [name for name in metrics if any(name not in scores for scores in told.values())]
        if short:
            return f"members: {short[0]} is missing"
        solo: Mapping[str, Mapping[str, object]] = facts.get("alone", {})
        if not alone:
            return "alone: was not asked for" if solo else ""
        same = {client: set(scores) for client, scores in told.items()}
        differs = {client: set(scores) for client, scores in solo.items()} != same
        return "alone: not the clients and metrics of members" if differs else ""

    return Expected(slack=SIZE_SLACK + ENTRY * len(wanted) * (1 + alone), odd=odd)


def check_reply(data: bytes, content: Content, expected: Expected) -> Message | Refusal:
    """Decode a reply, or say why it is refused.

    Args:
        data: What came; compressed tensors are returned as what they stand for.
        content: What a reply to the task may hold.
        expected: What this one must hold.
    """
    if len(data) > expected.most_bytes:
        return Refusal(f"size: {len(data)} bytes, at most {expected.most_bytes} expected")
    try:
        packed = _check_header(_well_formed(read_header, data), expected)
        message = _well_formed(decode, data)
        content.check(message)
        problem = expected.odd(message.facts) if expected.odd else ""
        if problem:
            raise MessageError(f"facts: {problem}")
        told = message.facts.get("form")
        if told != (packed.form if packed else None):
            raise MessageError(f"facts: form: {told} does not go with these tensors")
        _check_values(message.tensors, math.inf if packed else expected.max_norm)
        if packed:
            message = Message(_unpacked(message.tensors, packed), message.facts)
            _check_values(message.tensors, expected.max_norm)
    except MessageError as error:
        return Refusal(str(error))
    return message


def _well_formed(read: Callable[[bytes], Found], data: bytes) -> Found:
    try:
        return read(data)
    except MessageError as error:
        raise MessageError(f"format: {error}") from error


def _check_header(header: Mapping[str, object], expected: Expected) -> PackedReply | None:
    """Check names, dtypes and shapes; returns how the message is compressed, if it is."""
    if expected.shapes is None:
        return None
    names, packed = set(header) - {"__metadata__"}, expected.packed
    plain = {name: (shape, expected.dtype) for name, shape in expected.shapes.items()}
    if packed is not None:
        count = sum(math.prod(shape) for shape in expected.shapes.values())
        small = packed_shapes(packed.form, count, packed.share)
        if names & set(small):
            _check_entries(header, names, small)
            return packed
    _check_entries(header, names, plain)
    return None


def _check_entries(
    header: Mapping[str, object],
    names: set[str],
    wanted: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
) -> None:
    missing, extra = set(wanted) - names, names - set(wanted)
    if missing:
        raise MessageError(f"keys: {min(missing)!r} is missing")
    if extra:
        raise MessageError(f"keys: {min(extra)!r} was not asked for")
    for name, (shape, dtype) in wanted.items():
        entry = header[name]
        if not isinstance(entry, dict):
            raise MessageError(f"format: entry of {name!r} is not an object")
        if entry.get("dtype") != SAFETENSORS_DTYPE[dtype]:
            raise MessageError(f"dtype: {name!r} is {entry.get('dtype')}, expected {dtype}")
        if entry.get("shape") != list(shape):
            raise MessageError(f"shape: {name!r} is {entry.get('shape')}, expected {list(shape)}")


def _check_values(tensors: Mapping[str, Tensor], max_norm: float) -> None:
    for name, value in sorted(tensors.items()):
        if not value.is_floating_point():
            continue
        if not bool(torch.isfinite(value).all()):
            raise MessageError(f"finite: {name!r} holds NaN or Inf")
        norm = float(value.to(torch.float64).norm())
        if norm > max_norm:
            raise MessageError(f"norm: {name!r} has norm {norm:.3g}, at most {max_norm:g} allowed")


def _unpacked(tensors: Mapping[str, Tensor], packed: PackedReply) -> dict[str, Tensor]:
    some = next(iter(packed.base.values()))
    count = sum(value.numel() for value in packed.base.values())
    change = unpack(packed.form, tensors, count, some.dtype)
    return dict(add_change(packed.base, change.to(some.device)))
