"""Finds a setting in a model's JSON schema and says in words what it allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from atlas.config.federation import CLIENT_ID

Schema: TypeAlias = dict[str, Any]

_PATTERNS = {CLIENT_ID: "1 to 64 letters, digits, - or _"}
_SIMPLE = {"boolean": "true or false", "null": "null", "object": "a mapping"}


def options(schema: Schema, node: Schema) -> list[Schema]:
    """Returns the alternatives of a schema node with references resolved."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    branches = node.get("anyOf")
    if branches is None:
        return [node]
    return [option for branch in branches for option in options(schema, branch)]


def properties(schema: Schema, node: Schema) -> Schema:
    """Returns the named entries that a node may have in any of its alternatives."""
    return {
        name: entry
        for option in options(schema, node)
        for name, entry in option.get("properties", {}).items()
    }


def all_keys(schema: Schema, node: Schema) -> Iterator[str]:
    """Yields every dotted key that leads through mappings with fixed keys."""
    for name, entry in properties(schema, node).items():
        yield name
        yield from (f"{name}.{key}" for key in all_keys(schema, entry))


def walk(schema: Schema, location: Sequence[str | int]) -> tuple[list[str | int], Schema]:
    """Follows a location as far as the schema knows it; union branches are not part of a key."""
    path: list[str | int] = []
    node = schema
    for part in location:
        child = _child(schema, node, part)
        if child is None:
            break
        path.append(part)
        node = child
    branches = options(schema, node)
    return path, branches[0] if len(branches) == 1 else node


def _child(schema: Schema, node: Schema, part: str | int) -> Schema | None:
    """Returns the schema of one entry of a node, or None when it has no such entry."""
    for option in options(schema, node):
        if isinstance(part, int):
            if "items" in option:
                return dict(option["items"])
            continue
        if part in option.get("properties", {}):
            return dict(option["properties"][part])
        open_keys = [*option.get("patternProperties", {}).values()]
        open_keys.append(option.get("additionalProperties"))
        for entry in open_keys:
            if isinstance(entry, dict) and part != "[key]":
                return dict(entry)
    return None


def choices(node: Schema) -> list[Any]:
    """Returns the fixed choices of a node, if it has any."""
    return [node["const"]] if "const" in node else list(node.get("enum", []))


def key_form(node: Schema) -> str:
    """Describes the keys of a mapping with free keys."""
    return " or ".join(_PATTERNS.get(p, p) for p in node.get("patternProperties", {})) or "text"


def allowed(schema: Schema, node: Schema) -> str:
    """Describes in words what a schema node allows."""
    return ", or ".join(_describe(schema, option) for option in options(schema, node))


def _describe(schema: Schema, node: Schema) -> str:
    """Describes one alternative."""
    fixed = choices(node)
    if fixed:
        return ", ".join(str(choice) for choice in fixed)
    kind = node.get("type", "")
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _bounds(node)
    if kind == "string":
        pattern = node.get("pattern")
        if pattern:
            return _PATTERNS.get(pattern, f"text of the form {pattern}")
        return "a path" if node.get("format") == "path" else "text"
    if kind == "array":
        return f"a list{_lengths(node)}, each {allowed(schema, node.get('items', {}))}"
    if kind == "object" and "properties" in node:
        return f"a mapping with the keys {', '.join(node['properties'])}"
    return _SIMPLE.get(kind, "any value")


def _bounds(node: Schema) -> str:
    """Describes the range of a number."""
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {node[name]:g}" for name, sign in signs.items() if name in node]
    return f" {' and '.join(limits)}" if limits else ""


def _lengths(node: Schema) -> str:
    """Describes how many entries a list may have."""
    signs = {"minItems": "at least", "maxItems": "at most"}
    limits = [f"{sign} {node[name]}" for name, sign in signs.items() if name in node]
    return f" of {' and '.join(limits)}" if limits else ""
