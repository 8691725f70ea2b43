"""What travels between server and clients: named tensors and a small JSON object, as bytes.

The format is safetensors with one metadata entry, so bytes are deterministic, nothing is ever
unpickled, and the header can be checked before any tensor is built.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

MAX_HEADER = 16 * 2**20


class MessageError(ValueError):
    """Bytes that are not a message."""


@dataclass(frozen=True)
class Message:
    """Named tensors and JSON-like facts."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def encode(tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> bytes:
    """A message as bytes; their length is what the byte counts count."""
    ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(facts, sort_keys=True)
    return bytes(save_tensors(ready, metadata={"facts": text}))


def read_header(data: bytes) -> dict[str, Any]:
    """The header of a message, checked for plausibility, without building tensors."""
    if len(data) < 8:
        raise MessageError("truncated: no header")
    size = int.from_bytes(data[:8], "little")
    if size > min(len(data) - 8, MAX_HEADER):
        raise MessageError(f"header of {size} bytes in a message of {len(data)}")
    try:
        header = json.loads(data[8 : 8 + size].decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise MessageError(f"header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise MessageError("header is not an object")
    return header


def decode(data: bytes) -> Message:
    """Bytes back to a message; raises `MessageError` on anything malformed."""
    header = read_header(data)
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("facts"), str):
        raise MessageError("no facts in the header")
    try:
        facts = json.loads(metadata["facts"])
        tensors = load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MessageError(f"malformed: {error}") from error
    if not isinstance(facts, dict):
        raise MessageError("facts are not an object")
    return Message(tensors, facts)
