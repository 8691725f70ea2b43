"""Whether values read from a file have the types that a JSON schema says.

Readers of summaries index and add up what they find; a file that somebody edited, or that a disk
damaged, must be told before they do. Only types and required keys count: bounds, forms of names
and keys that are not known are for tests, so that summaries of other versions are still shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Node = Mapping[str, Any]
_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def misfits(value: object, schema: Node) -> Iterator[str]:
    """Yields what a value lacks of its schema: `score.mean: expected number, found string`.

    Args:
        value: Read from JSON.
        schema: Draft 2020-12, of the keywords that summaries' schemas have.
    """
    yield from _walk(value, schema, schema, "")


def _walk(value: object, node: Node, schema: Node, key: str) -> Iterator[str]:
    node = _resolved(node, schema)
    branches = [_resolved(branch, schema) for branch in node.get("oneOf", [])]
    if branches:
        node = next((branch for branch in branches if _is_of(value, branch)), branches[-1])
    if not _is_of(value, node):
        yield f"{key}: expected {' or '.join(_names(node))}, found {_name_of(value)}"
    elif isinstance(value, dict):
        missing = [name for name in node.get("required", []) if name not in value]
        if missing:
            yield f"{f'{key}: ' if key else ''}{', '.join(missing)} missing"
        for name, entry in value.items():
            inner = node.get("properties", {}).get(name, node.get("additionalProperties"))
            if isinstance(inner, dict):
                yield from _walk(entry, inner, schema, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and "items" in node:
        for number, entry in enumerate(value):
            yield from _walk(entry, node["items"], schema, f"{key}.{number}")


def _resolved(node: Node, schema: Node) -> Node:
    if "$ref" not in node:
        return node
    found: Node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return found


def _names(node: Node) -> list[str]:
    names = node.get("type", [])
    return [names] if isinstance(names, str) else list(names)


def _is_of(value: object, node: Node) -> bool:
    names = _names(node)
    return not names or any(_has_type(value, name) for name in names)


def _has_type(value: object, name: str) -> bool:
    if name in ("number", "integer"):
        # true is a number to Python, and 1.0 a whole one to JSON.
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return name == "number" or isinstance(value, int) or value.is_integer()
    return isinstance(value, _TYPES[name])


def _name_of(value: object) -> str:
    return next(name for name in (*_TYPES, "number") if _has_type(value, name))
