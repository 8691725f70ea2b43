"""Replies are checked before anything uses them; a bad one is refused with a reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atlas.federation.exchange.message import Message, MessageError, decode, read_header

SIZE_SLACK = 4096
SAFETENSORS_DTYPE = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class Refusal:
    """Why a reply was not used."""

    reason: str


@dataclass(frozen=True)
class Expected:
    """What a reply must look like.

    Attributes:
        shapes: Shape of every tensor, by name; nothing may be missing or extra.
        dtype: Their dtype.
        max_norm: Largest L2 norm of any one tensor.
        max_examples: Largest credible number of training examples.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtype: torch.dtype = torch.float32
    max_norm: float = 1e4
    max_examples: int = 10**9

    @property
    def bytes(self) -> int:
        """Size of the tensors together."""
        return self.dtype.itemsize * sum(math.prod(shape) for shape in self.shapes.values())


def check_reply(data: bytes, expected: Expected) -> Message | Refusal:
    """Decode a fit reply, or say why it is refused.

    Size, keys, dtypes and shapes are judged from the header, before anything is allocated.
    """
    limit = 2 * expected.bytes + SIZE_SLACK + 512 * len(expected.shapes)
    if len(data) > limit:
        return Refusal(f"size: {len(data)} bytes, at most {limit} expected")
    try:
        header = read_header(data)
        problem = _check_header(header, expected)
        if problem:
            return Refusal(problem)
        message = decode(data)
    except MessageError as error:
        return Refusal(f"format: {error}")
    problem = _check_values(message, expected) or _check_weight(message, expected)
    return Refusal(problem) if problem else message


def _check_header(header: Mapping[str, object], expected: Expected) -> str:
    names = set(header) - {"__metadata__"}
    missing, extra = set(expected.shapes) - names, names - set(expected.shapes)
    if missing:
        return f"keys: {sorted(missing)[0]!r} is missing"
    if extra:
        return f"keys: {sorted(extra)[0]!r} was not asked for"
    for name, shape in expected.shapes.items():
        entry = header[name]
        if not isinstance(entry, dict):
            return f"format: entry of {name!r} is not an object"
        if entry.get("dtype") != SAFETENSORS_DTYPE[expected.dtype]:
            return f"dtype: {name!r} is {entry.get('dtype')}, expected {expected.dtype}"
        if entry.get("shape") != list(shape):
            return f"shape: {name!r} is {entry.get('shape')}, expected {list(shape)}"
    return ""


def _check_values(message: Message, expected: Expected) -> str:
    for name, value in sorted(message.tensors.items()):
        if not bool(torch.isfinite(value).all()):
            return f"finite: {name!r} holds NaN or Inf"
        norm = float(value.to(torch.float64).norm())
        if norm > expected.max_norm:
            return f"norm: {name!r} has norm {norm:.3g}, at most {expected.max_norm:g} allowed"
    return ""


def _check_weight(message: Message, expected: Expected) -> str:
    count = message.facts.get("examples")
    if isinstance(count, bool) or not isinstance(count, int):
        return f"weight: examples is {count!r}, expected a whole number"
    if not 1 <= count <= expected.max_examples:
        return f"weight: examples is {count}, allowed 1 to {expected.max_examples}"
    return ""
