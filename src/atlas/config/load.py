"""Reads the settings of a run: a preset or a file, its base, a size, and ``key=value`` overrides.

Paths in them are made absolute, so that a saved run finds its files from anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atlas.config.federation import FederationConfig
from atlas.config.grokking import GrokkingConfig
from atlas.config.memory import MemoryConfig
from atlas.config.messages import explain, nearest, show
from atlas.config.places import anchor, fill_data_path
from atlas.config.reading import merge, parse_mapping, parse_override, set_value, to_yaml
from atlas.errors import InputError

RunConfig = FederationConfig | MemoryConfig | GrokkingConfig
KINDS: dict[str, type[RunConfig]] = {
    "federation": FederationConfig,
    "memory": MemoryConfig,
    "grokking": GrokkingConfig,
}


def check_kind(kind: object) -> list[str]:
    """The kinds of run that are meant; all, where it is None.

    Raises:
        InputError: There is no such kind.
    """
    if kind is None:
        return list(KINDS)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"kind: {show(kind)} is unknown; allowed: {', '.join(KINDS)}")
    return [kind]


def preset_names() -> list[str]:
    """Returns the names of the presets that come with the package, sorted."""
    folder = _preset_folder()
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """Returns a preset as it is written, comments included."""
    return (_preset_folder() / f"{name}.yaml").read_text("utf-8")


def read_preset(name: str) -> dict[str, Any]:
    """Returns a preset's settings, laid over those of the preset that its `base` names."""
    return _on_base(parse_mapping(preset_text(name).encode(), f"preset {name}"), f"preset {name}")


def load_config(source: str, overrides: Sequence[str]) -> RunConfig:
    """Reads a whole configuration; later parts win: file, then size block, then overrides.

    Relative paths become absolute: those of a file are relative to it, those of overrides to the
    current folder.

    Args:
        source: The name of a preset, or the path of a YAML file.
        overrides: Texts such as ``train.lr=1e-3``; the value is read as YAML.

    Returns:
        The validated settings.

    Raises:
        InputError: Something is not allowed; one line per problem.
    """
    changes = [parse_override(text) for text in overrides]
    settings = _resolve_size(_read_source(source), changes)
    if source not in preset_names():
        settings = anchor(settings, Path(source).absolute().parent)
    return _changed(settings, [(path, value) for path, value in changes if path != ["size"]])


def build_config(settings: dict[str, Any], overrides: Sequence[str]) -> RunConfig:
    """As `load_config`, from plain values instead of a file.

    Raises:
        InputError: Something is not allowed; one line per problem.
    """
    return _changed(settings, [parse_override(text) for text in overrides])


def _changed(settings: dict[str, Any], changes: Sequence[tuple[list[str], Any]]) -> RunConfig:
    for path, value in changes:
        set_value(settings, path, value)
    return _validate(anchor(fill_data_path(settings), Path.cwd()))


def load_federation(source: str, overrides: Sequence[str]) -> FederationConfig:
    """As `load_config`, for work that only a federation can do.

    Raises:
        InputError: Something is not allowed, or it is another kind of run.
    """
    return _federation(load_config(source, overrides), source)


def load_resolved_federation(path: Path) -> FederationConfig:
    """As `load_resolved`, for work that only a federation can do.

    Raises:
        InputError: The file cannot be used, or is of another kind of run.
    """
    return _federation(load_resolved(path), str(path))


def _federation(config: RunConfig, source: str) -> FederationConfig:
    if isinstance(config, FederationConfig):
        return config
    raise InputError(f"{source}: kind: {config.kind}; this needs a run of kind federation")


def load_resolved(path: Path) -> RunConfig:
    """Reads back what `dump_config` wrote; clients' files in its own folder are found again.

    Args:
        path: The file, usually a run's ``config.yaml``.

    Returns:
        The validated settings.

    Raises:
        InputError: The file cannot be read or is not a valid configuration.
    """
    settings = _read_file(path)
    clients = settings.get("clients")
    for client in clients if isinstance(clients, list) else ():
        for key in ("data", "test_data") if isinstance(client, dict) else ():
            if isinstance(client.get(key), str):
                client[key] = str(path.absolute().parent / client[key])
    with _naming(str(path)):
        former = FORMER if _kind_of(settings) == "federation" else {}
        return _validate(merge(former, settings))


def parse_resolved(text: str, where: str) -> RunConfig:
    """The same from a text that came otherwise than by a file.

    Args:
        text: What `dump_config` wrote.
        where: What to call it in an error.

    Raises:
        InputError: It is not a valid configuration.
    """
    settings = parse_mapping(text.encode("utf-8"), where)
    with _naming(where):
        return _validate(settings)


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Names a file that the user may never have opened in every line about its keys."""
    try:
        yield
    except InputError as error:
        lines = [f"{where}: {line}" for line in str(error).splitlines()]
        raise InputError("\n".join(lines)) from None


FORMER: dict[str, Any] = {
    "clusters": {"splits": "real"},
    "relation": {"scale": "unit", "siblings": "apart"},
    "route": {"waiting": 0.0},
}
"""What settings of a federation meant before there was a key for it. A recorded configuration is
complete, so one that lacks a key was written before; its run goes on as it began."""

LENGTHS = {"federation": "rounds", "memory": "train.steps", "grokking": "train.steps"}
"""The one setting of each kind of run that may change after its start: how long it is."""


def length_of(config: RunConfig) -> int:
    """How long a run is: rounds of a federation, steps of all others."""
    return config.rounds if isinstance(config, FederationConfig) else config.train.steps


def lengthened(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The settings of a run that goes on beyond the end it was started with.

    Args:
        config: Its settings so far.
        overrides: Texts such as ``rounds=20``.

    Raises:
        InputError: Another setting is to change; a run goes on with those it was started with.
    """
    allowed, settings = LENGTHS[config.kind], json.loads(config.model_dump_json())
    for text in overrides:
        path, value = parse_override(text)
        if ".".join(path) != allowed:
            raise InputError(
                f"{'.'.join(path)}: a run goes on with the settings it was started with; "
                f"allowed: {allowed}"
            )
        set_value(settings, path, value)
    return _validate(settings)


def dump_config(config: RunConfig, home: Path | None = None) -> str:
    """Writes every setting, defaults included, as YAML.

    Args:
        config: The settings.
        home: The run folder that it is written into. Clients' files that lie in there are named
            as seen from it, so that the folder can be moved.

    Returns:
        Text that loads back to an equal object; other paths stay as given.
    """
    settings = config.model_dump(mode="json")
    for client in settings.get("clients", ()):
        for key in ("data", "test_data"):
            if home is not None and client[key] is not None:
                place, own = Path(client[key]), home.absolute()
                client[key] = str(place.relative_to(own) if place.is_relative_to(own) else place)
    return to_yaml(settings)


def _preset_folder() -> Traversable:
    return resources.files("atlas") / "presets"


def _read_source(source: str) -> dict[str, Any]:
    """Reads a preset by its name, or a file by its path."""
    presets = preset_names()
    if source in presets:
        return read_preset(source)
    path = Path(source)
    try:
        found = path.is_file()
    except OSError:  # A name that is too long for the file system is no file either.
        found = False
    if not found:
        guess = nearest(source, presets)
        hint = f" did you mean {guess}?" if guess else ""
        raise InputError(
            f"{show(source)}: neither a preset nor a file;{hint} presets: "
            f"{', '.join(presets) or 'none'}"
        )
    return _on_base(_read_file(path), source)


def _on_base(settings: dict[str, Any], place: str) -> dict[str, Any]:
    """Lays settings over the preset that they name as their base, sizes included."""
    if "base" not in settings:
        return settings
    base, own = settings["base"], {key: settings[key] for key in settings if key != "base"}
    if base not in preset_names() or place == f"preset {base}":
        raise InputError(f"{place}: base: {show(base)}; allowed: {', '.join(preset_names())}")
    return merge(read_preset(base), own)


def _read_file(path: Path) -> dict[str, Any]:
    """Reads a YAML file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_mapping(data, str(path))


def _resolve_size(
    settings: dict[str, Any], changes: Sequence[tuple[list[str], Any]]
) -> dict[str, Any]:
    """Merges the block of the chosen size into the settings and drops the other blocks."""
    base = {key: value for key, value in settings.items() if key not in ("size", "sizes")}
    sizes = settings.get("sizes") or {}
    if not isinstance(sizes, dict):
        raise InputError(f"sizes: {show(sizes)} is not a mapping; allowed: a mapping per size")
    for name, block in sizes.items():
        if not isinstance(block, dict):
            raise InputError(f"sizes.{name}: {show(block)} is not a mapping of settings")
    chosen = [value for path, value in changes if path == ["size"]]
    size = chosen[-1] if chosen else settings.get("size")
    if size is None:
        return base
    if not isinstance(size, str) or size not in sizes:
        guess = nearest(str(size), sizes)
        hint = f" did you mean {guess}?" if guess else ""
        raise InputError(
            f"size: {show(size)} is unknown;{hint} allowed: {', '.join(sizes) or 'none'}"
        )
    return merge(base, sizes[size])


def _kind_of(settings: dict[str, Any]) -> str:
    # null is no kind, though `check_kind` takes it for all of them.
    kind = settings.get("kind", "federation")
    return check_kind("null" if kind is None else kind)[0]


def _validate(settings: dict[str, Any]) -> RunConfig:
    """Checks plain values against the model of their kind."""
    model = KINDS[_kind_of(settings)]
    try:
        # JSON input lets strict checks tell true from 1 and "1" from 1, and still read paths.
        return model.model_validate_json(json.dumps(settings), strict=True)
    except ValidationError as error:
        raise InputError(explain(error, model)) from None
    except RecursionError:
        raise InputError("the settings are nested too deeply") from None
