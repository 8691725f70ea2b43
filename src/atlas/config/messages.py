"""Turns what pydantic found wrong into lines that name key, value and what is allowed.

What is allowed is read from the model's JSON schema and said in words.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError

from atlas.config.plan import DEVICE
from atlas.config.training import CLIENT_ID

Schema: TypeAlias = dict[str, Any]

_PATTERNS = {
    CLIENT_ID: "1 to 64 letters, digits, - or _",
    DEVICE: "cpu, cuda, cuda:N or mps",
}
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


_WRONG = {
    "int_type": "is not written as a whole number",
    "int_parsing": "is not written as a whole number",
    "int_from_float": "is not written as a whole number",
    "float_type": "is not a number",
    "float_parsing": "is not a number",
    "finite_number": "is not a finite number",
    "bool_type": "is neither true nor false",
    "bool_parsing": "is neither true nor false",
    "string_type": "is not text",
    "path_type": "is not a path",
    "list_type": "is not a list",
    "dict_type": "is not a mapping",
    "model_type": "is not a mapping",
    "model_attributes_type": "is not a mapping",
    "dataclass_type": "is not a mapping",
    "literal_error": "is not one of the choices",
    "greater_than": "is too small",
    "greater_than_equal": "is too small",
    "less_than": "is too large",
    "less_than_equal": "is too large",
    "string_pattern_mismatch": "has the wrong form",
    "too_short": "has too few entries",
    "too_long": "has too many entries",
}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""A key that a model does not have, and one that a dataclass does not have."""
_LONGEST = 60


def nearest(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Returns the candidate that the user most likely meant.

    Besides typing errors this finds short names from long ones: ``learning_rate`` is ``lr`` by
    its initials, ``batch_size`` is ``batch`` by one of its words.

    Args:
        word: What was given.
        candidates: What is allowed.
        cutoff: How alike a candidate must be, of 1.

    Returns:
        One of the candidates, or None when nothing is near.
    """
    names = list(candidates)
    parts = [part for part in word.lower().replace("-", "_").split("_") if part]
    for name in names:
        if name in parts or (len(parts) > 1 and name == "".join(part[0] for part in parts)):
            return name
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=cutoff)
    return lowered[close[0]] if close else None


def show(value: object) -> str:
    """Returns a value as the user would write it, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    # A command line may hold bytes that are no text; the message must still be printable.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Writes one line per problem.

    Args:
        error: What pydantic found.
        model: The model that was validated against.

    Returns:
        Lines such as ``train.lr: 5 is too large; allowed: a number > 0 and <= 1``.
    """
    schema = model.model_json_schema()
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        key, line = _explain_one(schema, dict(problem))
        # Every branch of a union reports its own problem; the first line lists all branches.
        lines.setdefault(key, line)
    return "\n".join(lines.values())


def _explain_one(schema: Schema, problem: Schema) -> tuple[str, str]:
    """Returns the dotted key of a problem and the line that explains it."""
    location: Sequence[str | int] = problem["loc"]
    kind, value = problem["type"], problem["input"]
    path, node = walk(schema, location)
    key = ".".join(str(part) for part in path)
    if kind in _UNKNOWN:
        key = ".".join(str(part) for part in location)
        return key, _explain_unknown(schema, path, str(location[-1]), node)
    if kind == "missing":
        return key, f"{key}: missing; allowed: {allowed(schema, node)}"
    if location and location[-1] == "[key]":
        _, mapping = walk(schema, location[:-2])
        return key, f"{key}: the key {show(value)} has the wrong form; allowed: {key_form(mapping)}"
    if kind in _WRONG:
        hint = _hint(kind, value, node)
        return key, f"{key}: {show(value)} {_WRONG[kind]};{hint} allowed: {allowed(schema, node)}"
    message = str(problem.get("ctx", {}).get("error", problem["msg"]))
    return f"{key}:{message}", f"{key}: {message}" if key else message


def _explain_unknown(schema: Schema, path: list[str | int], name: str, node: Schema) -> str:
    """Explains an unknown key by its siblings, or by where else the name occurs."""
    siblings = list(properties(schema, node))
    prefix = "".join(f"{part}." for part in path)
    guess = nearest(name, siblings)
    full = f"{prefix}{guess}" if guess else _elsewhere(schema, name)
    hint = f" did you mean {full}?" if full else ""
    return f"{prefix}{name}: unknown key;{hint} allowed: {', '.join(siblings)}"


def _elsewhere(schema: Schema, name: str) -> str | None:
    """Returns the full key of a setting of that name in another part of the settings."""
    keys = {key.rpartition(".")[2]: key for key in sorted(all_keys(schema, schema), reverse=True)}
    guess = nearest(name, keys)
    return keys[guess] if guess else None


def _hint(kind: str, value: object, node: Schema) -> str:
    """Returns a short advice that fits the problem, or nothing."""
    if kind == "literal_error" and isinstance(value, str):
        guess = nearest(value, [str(choice) for choice in choices(node)])
        return f" did you mean {guess}?" if guess else ""
    if kind == "list_type" and isinstance(value, str) and value:
        return f" did you mean [{value}]?"
    if kind == "string_type" and isinstance(value, bool | int | float | dict):
        return " put it in quotes;"
    return ""
