"""The results of a run as JSON, described by a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from atlas.errors import InputError
from atlas.runs.files import write_text_atomic
from atlas.runs.plain import plain

_SCHEMAS = {"federation": "summary.schema.json", "memory": "summary_memory.schema.json"}


def schema(kind: str = "federation") -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of ``summary.json`` for a kind of run."""
    file = resources.files("atlas.runs") / _SCHEMAS[kind]
    loaded: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return loaded


def write_summary(path: Path, summary: Mapping[str, object]) -> None:
    """Writes the results at once, with sorted keys; NaN and the infinities become null.

    Args:
        path: The file.
        summary: The results; see `schema`.
    """
    text = json.dumps(plain(summary), sort_keys=True, indent=2, allow_nan=False)
    write_text_atomic(path, text + "\n")


def read_summary(path: Path) -> dict[str, Any]:
    """Reads the results of a run.

    Args:
        path: The file.

    Returns:
        The results.

    Raises:
        InputError: The file cannot be read, is not JSON, or lacks a part that every summary has.
    """
    try:
        summary = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(summary, dict):
        raise InputError(f"{path}: not a summary: expected a JSON object")
    kind = summary.get("kind")
    if not isinstance(kind, str) or kind not in _SCHEMAS:
        raise InputError(f"{path}: not a summary: kind is {kind!r}, not {' or '.join(_SCHEMAS)}")
    missing = [key for key in schema(kind)["required"] if key not in summary]
    if missing:
        raise InputError(f"{path}: not a whole summary: {', '.join(missing)} missing")
    return summary
