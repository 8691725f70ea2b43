"""Flower's control API: nodes are made known, runs are started and looked at.

Flower asks nobody who they are here: whoever reaches the port and has the authority's certificate
may do all of it. `docs/flower.md` says how to fence it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.cli.build import build_fab_from_disk
from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

UNREACHABLE = (httpx.HTTPError, OSError)
SLOW = httpx.TimeoutException
"""Of these, what a busy server raises, too."""


@dataclass(frozen=True)
class RunStatus:
    """Where Flower says a run is.

    Attributes:
        over: Whether it has ended.
        well: Whether it ended as it should.
        details: What Flower says of it.
    """

    over: bool
    well: bool
    details: str


class Control:
    """A SuperLink's control API.

    Args:
        address: Host and port.
        authority: The certificate by which the SuperLink is known; None without TLS.
    """

    def __init__(self, address: str, authority: Path | None) -> None:
        self._client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=authority is None,
            root_certificates=None if authority is None else str(authority),
            interceptors=[
                CliClientHttpInterceptor(),
                RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
            ],
        )

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def nodes(self) -> dict[str, str]:
        """What is known of every node that may come, by its name: `online` or not."""
        found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return {node.name: node.status for node in found if not node.unregistered_at}

    def register(self, name: str, public_key: Path) -> None:
        """Make a node's key known."""
        key = serialization.load_ssh_public_key(public_key.read_bytes())
        told = public_key_to_bytes(key)
        self._client.RegisterNode(RegisterNodeRequest(public_key=told, name=name))

    def start(self, app: Path, config: dict[str, str]) -> int:
        """Start a run of the Flower app in a folder; returns its number.

        Raises:
            RuntimeError: Flower did not start it.
        """
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        asked = StartRunRequest(
            fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(config))
        )
        found = self._client.StartRun(asked)
        if not found.HasField("run_id"):
            raise RuntimeError("Flower did not start the run")
        return int(found.run_id)

    def status(self, run: int) -> RunStatus:
        """Where a run is."""
        found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        over = found.status == "finished"
        return RunStatus(over, over and found.sub_status == "completed", str(found.details))

    def stop(self, run: int) -> None:
        """End a run."""
        self._client.StopRun(StopRunRequest(run_id=run))
