"""YAML text to plain values and back, by the core schema of YAML 1.2, and changes to them.

PyYAML follows YAML 1.1, where ``1e-3`` is text, ``no`` is false and ``1:30`` is ninety. Here a
number is what it looks like, and only ``true`` and ``false`` are truth values. Tags, anchors and
aliases are refused: settings need none of them, and they are the ways in which a YAML file runs
code or grows without bound.

Changes are ``key=value`` texts and blocks laid over others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from atlas.config.messages import show
from atlas.errors import InputError

_CORE = "tag:yaml.org,2002:"
_IMPLICIT = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
)


class _Loader(yaml.SafeLoader):
    """A safe loader without tags, aliases and repeated keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401
        """Refuses what a settings file has no use for, then composes as usual."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not allowed", problem_mark=event.start_mark
            )
        if getattr(event, "tag", None):
            raise yaml.MarkedYAMLError(
                problem=f"the tag {event.tag!r} is not allowed", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_settings(self, node: yaml.MappingNode) -> dict[str, Any]:
        """Builds a mapping and refuses keys that are not text or come twice."""
        lines: dict[str, int] = {}
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            mark = key_node.start_mark
            if not isinstance(key, str):
                problem = f"the key {key!r} is not text; put it in quotes"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            if key in lines:
                problem = f"the key {key!r} is given twice, first on line {lines[key]}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            lines[key] = mark.line + 1
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        """Reads decimal (also with leading zeros), octal 0o17 and hexadecimal 0x1f."""
        text = node.value
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        try:
            return int(text, base)
        except ValueError:  # Python bounds the digits that it converts.
            raise yaml.MarkedYAMLError(
                problem="a number of too many digits", problem_mark=node.start_mark
            ) from None

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """Reads text and refuses halves of characters, which no file can hold."""
        text = str(node.value)
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise yaml.MarkedYAMLError(
                problem="text that is not valid Unicode", problem_mark=node.start_mark
            )
        return text


class _Dumper(yaml.SafeDumper):
    """A safe dumper that quotes text which YAML 1.1 or 1.2 would not read back as text."""

    def ignore_aliases(self, data: object) -> bool:
        """Writes equal objects out in full, since aliases are refused on reading."""
        del data
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        """Escapes whatever is not printable; the other styles fold line breaks."""
        return self.represent_scalar(f"{_CORE}str", data, None if data.isprintable() else '"')


for _tag, _pattern, _first in _IMPLICIT:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_CORE}{_tag}", re.compile(rf"^(?:{_pattern})\Z"), _first)
_Loader.add_constructor(f"{_CORE}map", _Loader.construct_settings)
_Loader.add_constructor(f"{_CORE}int", _Loader.construct_whole)
_Loader.add_constructor(f"{_CORE}str", _Loader.construct_text)
_Dumper.add_representer(str, _Dumper.represent_text)


def parse_yaml(text: str, where: str) -> object:
    """Reads one YAML document.

    Args:
        text: The document.
        where: What to call it in an error, for example the file's name.

    Returns:
        Plain mappings with text keys, lists, text, numbers, truth values and None.

    Raises:
        InputError: The text is not such a document; names the line.
    """
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f" line {mark.line + 1}:"
        problem = error.problem or error.context or "not YAML"
        if problem.startswith("but ") and error.context:
            problem = f"{error.context}, {problem}"
        raise InputError(f"{where}:{line} {problem}") from None
    except yaml.reader.ReaderError as error:
        line = f" line {text.count(chr(10), 0, int(error.position)) + 1}:"
        raise InputError(f"{where}:{line} a character that YAML does not allow") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None


def parse_mapping(data: bytes, where: str) -> dict[str, Any]:
    """Reads a whole settings file.

    Args:
        data: The bytes of the file; UTF-8.
        where: What to call it in an error.

    Returns:
        The settings as plain values.

    Raises:
        InputError: The bytes are not UTF-8, not YAML, or not a mapping.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where}: line {line}: not UTF-8 text") from None
    settings = parse_yaml(text, where)
    if not isinstance(settings, dict):
        found = "nothing" if settings is None else f"a {type(settings).__name__}"
        raise InputError(f"{where}: expected a mapping of settings (key: value), found {found}")
    return settings


def to_yaml(values: dict[str, Any]) -> str:
    """Writes plain values as YAML that `parse_mapping` reads back equal.

    Args:
        values: Settings as plain values.

    Returns:
        The text, in the order of the mapping.
    """
    text: str = yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
    return text


def parse_override(text: str) -> tuple[list[str], Any]:
    """Splits one ``key=value``.

    Args:
        text: For example ``data.tasks=[sst2,mrpc]``.

    Returns:
        The parts of the key and the value as plain YAML value.

    Raises:
        InputError: There is no ``=``, a part of the key is empty, or the value is not YAML.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"override {show(text)}: not UTF-8 text") from None
    key, sign, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not sign or not all(path):
        raise InputError(f"override {show(text)}: expected key=value, for example train.lr=1e-3")
    if path[0] == "sizes":
        raise InputError(
            f"override {show(text)}: the size blocks stay as they are; override the setting itself"
        )
    return path, parse_yaml(value, f"override {show(text)}")


def override_texts(
    settings: Mapping[str, object], lists: Literal["values", "compared"] = "values"
) -> list[str]:
    """Settings as ``key=value`` texts: blocks become dotted keys; the inverse of `parse_override`.

    Args:
        settings: By name; a mapping is a block of settings.
        lists: Whether a list is one value, or the values that are compared.
    """
    texts = []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            inner = {f"{key}.{name}": part for name, part in value.items()}
            texts += override_texts(inner, lists)
        elif lists == "compared" and isinstance(value, list | tuple):
            texts.append(f"{key}={','.join(map(_value_text, value))}")
        else:
            texts.append(f"{key}={_value_text(value)}")
    return texts


def _value_text(value: object) -> str:
    if isinstance(value, str | Path):
        text = str(value)
        try:
            plain = parse_yaml(text, "value") == text and not set(text) & set(",[]{}\"'")
        except InputError:
            plain = False
        return text if plain else json.dumps(text)
    return json.dumps(value, default=str)


def set_value(settings: dict[str, Any], path: Sequence[str], value: object) -> None:
    """Sets one value in nested mappings and lists, in place.

    Args:
        settings: Where to set it; missing mappings on the way are made.
        path: Keys, and indices into lists.
        value: The new value.

    Raises:
        InputError: The path leads through a value that has no entries, or off the end of a list.
    """
    holder: Any = settings
    for depth, part in enumerate(path):
        index: Any = _list_index(holder, path, depth) if isinstance(holder, list) else part
        if depth == len(path) - 1:
            holder[index] = value
            return
        child = holder[index] if isinstance(holder, list) else holder.get(part)
        if child is None:
            child = holder[index] = {}
        if not isinstance(child, dict | list):
            here = ".".join(path[: depth + 1])
            raise InputError(
                f"{'.'.join(path)}: {here} is {show(child)}, which has no entries; "
                f"allowed: a key that leads through mappings and lists"
            )
        holder = child


def _list_index(holder: list[Any], path: Sequence[str], depth: int) -> int:
    """Returns a part of a key as an index into a list that it meets."""
    part, here = path[depth], ".".join(path[:depth])
    if not (part.isascii() and part.isdigit()) or len(part) > 9 or int(part) >= len(holder):
        allowed = f"an index from 0 to {len(holder) - 1}" if holder else "none, it is empty"
        raise InputError(
            f"{'.'.join(path)}: {here} is a list, {show(part)} is not in it; allowed: {allowed}"
        )
    return int(part)


def merge(base: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Lays one set of plain values over another.

    Args:
        base: The values below.
        upper: The values that win.

    Returns:
        A new mapping; mappings merge key by key, everything else is replaced whole.
    """
    merged = dict(base)
    for key, value in upper.items():
        below = merged.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        merged[key] = merge(below or {}, value) if both else value
    return merged
