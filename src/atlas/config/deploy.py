"""The settings of a deployment: where its server listens, and which nodes it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from atlas.config.messages import explain
from atlas.config.plan import Settings
from atlas.config.reading import parse_mapping
from atlas.config.training import ClientId
from atlas.errors import InputError

DEPLOY_FILE, FEDERATION_FILE = "deploy.yaml", "federation.yaml"
HOST = r"[A-Za-z0-9.:-]{1,255}"
Port = Annotated[int, Field(ge=1, le=65_535)]


class DeployedNode(Settings):
    """One machine of a deployment."""

    clients: list[ClientId] = Field(min_length=1, description="who is on it")
    port: Port = Field(description="its own port, which nobody but itself uses")


class DeploySettings(Settings):
    """A whole deployment."""

    host: Annotated[str, Field(pattern=rf"^{HOST}$")] = Field(
        "127.0.0.1", description="where nodes reach the server"
    )
    listen: Annotated[str, Field(pattern=rf"^{HOST}$")] = Field(
        "127.0.0.1", description="address at which the server listens"
    )
    port: Port = Field(9400, description="the server's one port")
    nodes: dict[ClientId, DeployedNode] = Field(min_length=1, description="by name")

    @property
    def address(self) -> str:
        """Where nodes reach the server."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def load_deployment(folder: Path) -> DeploySettings:
    """What `atlas deploy init` wrote.

    Raises:
        InputError: It is missing or wrong.
    """
    path = folder / DEPLOY_FILE
    try:
        given = parse_mapping(path.read_bytes(), str(path))
        return DeploySettings.model_validate_json(json.dumps(given), strict=True)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}; atlas deploy init {folder} makes it"
        ) from error
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error, DeploySettings)}") from None
