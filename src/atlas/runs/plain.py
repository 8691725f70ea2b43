"""Plain values for JSON: what a log or a summary can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence


def plain(value: object) -> object:
    """Turns a value into plain JSON values; NaN and the infinities become None.

    Args:
        value: Mappings, sequences, text, numbers, truth values, None, and whatever offers
            ``tolist`` (arrays, tensors and their scalars).

    Returns:
        The same as dictionaries with text keys, lists and scalars.

    Raises:
        TypeError: The value is of another type.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(entry) for entry in value]
    # Asked by its method, so that a log needs neither numpy nor torch.
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return plain(tolist())
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def to_json_line(value: Mapping[str, object]) -> str:
    """Writes a mapping as one line of standard JSON.

    Args:
        value: The mapping; see `plain`.

    Returns:
        The line with its newline.
    """
    return json.dumps(plain(value), allow_nan=False, separators=(", ", ": ")) + "\n"
