"""Text from files and models, made safe to show: what would steer a terminal or a page is spelled.

Markup (of rich, of HTML) is left as it is here; whoever shows text must show it as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Control characters but tab and newline, and those that turn the direction of writing."""
_UNPAIRED = re.compile("[\ud800-\udfff]")


def spelled(text: str) -> str:
    r"""The same text with every steering character written out: an escape becomes `\x1b`."""
    text = _UNPAIRED.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
    return _STEERING.sub(_written, text)


def _written(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def spelled_values(value: Any) -> Any:  # noqa: ANN401 - JSON
    """The same for all texts of a JSON value, keys included."""
    if isinstance(value, str):
        return spelled(value)
    if isinstance(value, Mapping):
        return {spelled(str(key)): spelled_values(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [spelled_values(own) for own in value]
    return value
