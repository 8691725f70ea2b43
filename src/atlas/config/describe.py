"""What there is to set, told by the models of the settings themselves, and the presets.

Free keys are written in angle brackets: `devices.<name>.room`, `clients.<number>.device`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atlas.config.load import KINDS, preset_names, preset_text, read_preset
from atlas.config.messages import Schema, allowed, nearest, options, show
from atlas.errors import InputError

NAME, NUMBER = "<name>", "<number>"
_TYPES = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "array": "list",
    "object": "mapping",
    "null": "null",
}
VERY_ALIKE = 0.8
"""How alike a word must be to a key of another block to be taken for it."""
NO_DEFAULT = object()
_EMPTY: dict[str, Any] = {"array": [], "object": {}}
"""What a list or a mapping is by default where its schema does not tell."""


@dataclass(frozen=True)
class SettingFacts:
    """One setting.

    Attributes:
        key: Dotted, as `key=value` takes it.
        kind: Of the runs that have it.
        type: What is written there: a number, text, a choice, ...
        default: What holds if it is not set; None also where it must be.
        required: Whether it must be set, wherever the block it is in is.
        allowed: The values it may have, in words.
        about: What it does.
    """

    key: str
    kind: str
    type: str
    default: Any
    required: bool
    allowed: str
    about: str

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def settings_of(kind: str) -> list[SettingFacts]:
    """All settings of a kind of run, in the order of its model."""
    model = KINDS[kind]
    schema = model.model_json_schema()
    defaults = model().model_dump(mode="json")
    return list(_walk(schema, schema, kind, "", defaults))


def _walk(
    schema: Schema, node: Schema, kind: str, start: str, defaults: object
) -> Iterator[SettingFacts]:
    """Every setting below a node; `defaults` are those of the node, where it has some."""
    for option in options(schema, node):
        for name, entry in option.get("properties", {}).items():
            known = defaults.get(name, NO_DEFAULT) if isinstance(defaults, dict) else NO_DEFAULT
            default = entry.get("default", NO_DEFAULT) if known is NO_DEFAULT else known
            if not _is_block(schema, entry):
                required = name in option.get("required", [])
                yield _facts(schema, entry, kind, f"{start}{name}", default, required=required)
            yield from _walk(schema, entry, kind, f"{start}{name}.", default)
        for part, inner in _free_keys(option):
            yield from _walk(schema, inner, kind, f"{start}{part}.", NO_DEFAULT)


def _is_block(schema: Schema, entry: Schema) -> bool:
    """Whether an entry is nothing but a mapping with settings of its own."""
    return all("properties" in option for option in options(schema, entry))


def _free_keys(option: Schema) -> Iterator[tuple[str, Schema]]:
    """The entries of a list, or of a mapping with free keys."""
    if isinstance(option.get("items"), dict):
        yield NUMBER, option["items"]
    open_keys = [*option.get("patternProperties", {}).values(), option.get("additionalProperties")]
    for entry in open_keys:
        if isinstance(entry, dict):
            yield NAME, entry


def _facts(
    schema: Schema, entry: Schema, kind: str, key: str, default: object, *, required: bool
) -> SettingFacts:
    if default is NO_DEFAULT:
        default = None if required else _EMPTY.get(entry.get("type", ""))
    types = dict.fromkeys(_type(option) for option in options(schema, entry))
    return SettingFacts(
        key=key,
        kind=kind,
        type=" or ".join(types),
        default=default,
        required=required,
        allowed=allowed(schema, entry),
        about=entry.get("description", ""),
    )


def _type(option: Schema) -> str:
    if "enum" in option or "const" in option:
        return "choice"
    return _TYPES.get(option.get("type", ""), "any value")


def find_settings(key: str | None, kinds: Sequence[str]) -> list[SettingFacts]:
    """The settings of some kinds of run: all, one, or those of a block such as `train`.

    Args:
        key: A whole key or the beginning of some; names and numbers stand for free keys, so that
            `devices.watch.room` is found. None: all.
        kinds: Of the runs.

    Raises:
        InputError: If there is no such setting.
    """
    known = [facts for kind in kinds for facts in settings_of(kind)]
    if key is None:
        return known
    found = [facts for facts in known if _leads_to(key, facts.key)]
    if found:
        return found
    raise InputError(_unknown(key, [facts.key for facts in known]))


def _leads_to(asked: str, key: str) -> bool:
    parts, own = asked.split("."), key.split(".")
    if len(parts) > len(own):
        return False
    return all(
        part == name or (name in (NAME, NUMBER) and part != "")
        for part, name in zip(parts, own, strict=False)
    )


def _unknown(key: str, known: Sequence[str]) -> str:
    """The nearest key: of its own block, then by its last word, wherever that occurs."""
    blocks = list(dict.fromkeys(name.partition(".")[0] for name in known))
    guess = _in_its_block(key, known) if "." in key else nearest(key, blocks)
    guess = guess or _elsewhere(key, known)
    hint = f" did you mean {guess}?" if guess else ""
    return f"{show(key)}: no such setting;{hint} settings and blocks of them: {', '.join(blocks)}"


def _in_its_block(key: str, known: Sequence[str]) -> str | None:
    """The nearest name in the block that the key names; None also where there is no such block."""
    block, _, word = key.rpartition(".")
    depth = block.count(".") + 1
    inside = [name.split(".") for name in known if _leads_to(block, name)]
    found = nearest(word, dict.fromkeys(parts[depth] for parts in inside if len(parts) > depth))
    return found and f"{block}.{found}"


def _elsewhere(key: str, known: Sequence[str]) -> str | None:
    """A key of other blocks; only what is very alike, since any word is a little like some key."""
    last = {name.rpartition(".")[2]: name for name in reversed(known)}
    word = nearest(key.rpartition(".")[2], last, VERY_ALIKE)
    return last[word] if word else nearest(key, known, VERY_ALIKE)


def list_presets() -> list[dict[str, Any]]:
    """Every preset: its name, its kind, the sizes it has and what it says of itself."""
    return [_preset(name) for name in preset_names()]


def _preset(name: str) -> dict[str, Any]:
    text = preset_text(name)
    settings = read_preset(name)
    return {
        "name": name,
        "kind": settings.get("kind", "federation"),
        "sizes": list(settings.get("sizes") or {}),
        "about": first_sentence(text),
    }


def first_sentence(text: str) -> str:
    """Of the comment that a preset begins with, whose first line is the command that runs it."""
    lines = []
    for line in text.splitlines()[1:]:
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").strip())
    sentence, _, _ = " ".join(lines).partition(". ")
    return sentence.rstrip(".")
