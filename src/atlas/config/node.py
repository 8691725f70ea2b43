"""The settings of one machine that trains clients of a federation: its own, never sent anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from atlas.config.messages import explain
from atlas.config.plan import Device, Settings
from atlas.config.reading import parse_mapping
from atlas.config.training import ClientId
from atlas.errors import InputError

NODE_FILE = "node.yaml"


class NodeSettings(Settings):
    """Who is on a node, and what it lets a server ask for."""

    clients: dict[ClientId, Path | None] = Field(
        min_length=1,
        description="ids of its clients, each with its file (JSONL or CSV); null: the client's "
        "share of the tasks in `data`, or made-up data",
    )
    tests: dict[ClientId, Path] = Field(
        default_factory=dict, description="separate test files of clients"
    )
    data: Path | None = Field(None, description="folder of tasks, as data.path has it")
    device: Device = Field("cpu", description="what models run on")
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="torch threads")
    plugins: list[str] = Field(
        default_factory=list, description="plugins that the server's settings may name"
    )
    allow_hub: bool = Field(
        False, description="whether models may be fetched if the server says so"
    )


def load_node(folder: Path) -> NodeSettings:
    """A node's settings; relative paths are seen from its folder.

    Raises:
        InputError: If they are missing or wrong.
    """
    path = folder / NODE_FILE
    try:
        given = parse_mapping(path.read_bytes(), str(path))
        found = NodeSettings.model_validate_json(json.dumps(given), strict=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error, NodeSettings)}") from None
    strange = sorted(set(found.tests) - set(found.clients))
    if strange:
        raise InputError(f"{path}: tests.{strange[0]}: no such client; allowed: those of clients")
    return found.model_copy(
        update={
            "clients": {name: _from(folder, file) for name, file in found.clients.items()},
            "tests": {name: folder / file.expanduser() for name, file in found.tests.items()},
            "data": _from(folder, found.data),
        }
    )


def _from(folder: Path, path: Path | None) -> Path | None:
    return None if path is None else folder / path.expanduser()
