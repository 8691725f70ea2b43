"""What travels between server and clients: named tensors and a small JSON object, as bytes.

The format is safetensors with one metadata entry, so bytes are deterministic, nothing is ever
unpickled, and the header can be checked before any tensor is built. JSON is read strictly: no name
twice, no NaN or infinity, no text that is not Unicode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

MAX_HEADER = 4 * 2**20
MAX_DIGITS = 40
"""Of a whole number."""
MAX_REASON = 200
"""Characters of what is told of a failure or a refusal."""


class MessageError(ValueError):
    """Bytes that are not a message."""


@dataclass(frozen=True)
class Message:
    """Named tensors and JSON-like facts."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def printable(text: str, most: int = MAX_REASON) -> str:
    """A text of somebody else as one short line that is safe on any terminal and in any file."""
    words = " ".join(text[: 4 * most].split())
    line = words.encode("unicode_escape").decode("ascii")
    return line if len(line) <= most else line[: most - 3] + "..."


def encode(tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> bytes:
    """A message as bytes; their length is what the byte counts count.

    Raises:
        ValueError: If a fact is NaN or infinite, which JSON does not know.
    """
    ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(facts, sort_keys=True, allow_nan=False)
    return bytes(save_tensors(ready, metadata={"facts": text}))


def read_header(data: bytes) -> dict[str, Any]:
    """The header of a message, checked for plausibility, without building tensors."""
    if len(data) < 8:
        raise MessageError("truncated: no header")
    size = int.from_bytes(data[:8], "little")
    if size > min(len(data) - 8, MAX_HEADER):
        raise MessageError(f"header of {size} bytes in a message of {len(data)}")
    try:
        text = data[8 : 8 + size].decode("utf-8")
    except UnicodeDecodeError as error:
        raise MessageError(f"header is not JSON: {error}") from error
    return _read_object(text, "header")


def decode(data: bytes) -> Message:
    """Bytes back to a message; raises `MessageError` on anything malformed."""
    header = read_header(data)
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("facts"), str):
        raise MessageError("no facts in the header")
    facts = _read_object(metadata["facts"], "facts")
    try:
        tensors = load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise MessageError(f"malformed: {printable(str(error))}") from error
    return Message(tensors, facts)


def _read_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object, read strictly."""
    try:
        found = json.loads(
            text,
            object_pairs_hook=_no_twins,
            parse_int=_short_int,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise MessageError(f"{what} holds text that is not Unicode") from error
    except RecursionError as error:
        raise MessageError(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise MessageError(f"{what} is not JSON: {printable(str(error))}") from error
    if not isinstance(found, dict):
        raise MessageError(f"{what} is not an object")
    return found


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _short_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number beyond all floats")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
