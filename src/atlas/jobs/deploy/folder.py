"""`atlas deploy init`: a folder with all that a deployment needs, ready to be started."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from atlas.build.remote import build_server, sent_settings
from atlas.config.deploy import DEPLOY_FILE, FEDERATION_FILE, DeployedNode, DeploySettings
from atlas.config.federation import FederationConfig
from atlas.config.load import parse_resolved
from atlas.config.node import NODE_FILE, NodeSettings
from atlas.config.reading import to_yaml
from atlas.data.clients import client_ids
from atlas.engines.flower.keys import LOOPBACK, Authority, write_node_key
from atlas.errors import InputError
from atlas.runs.files import check_name, writing

NODES, SERVER, APP = "nodes", "server", "app"
SCRIPT = 0o755


def make_deployment(
    folder: Path,
    config: FederationConfig,
    nodes: Mapping[str, Sequence[str]],
    host: str = "127.0.0.1",
    port: int = 9400,
) -> DeploySettings:
    """Write certificates, keys, settings, scripts and a page that explains them.

    Args:
        folder: A new folder.
        config: The federation that will be run; a client's own file is named in its node's
            settings alone.
        nodes: Clients of every node by the node's name; empty for one node per client.
        host: Where nodes reach the server.
        port: The server's; nodes get those after it.

    Raises:
        InputError: The folder exists or cannot be written, or nodes and clients do not match.
    """
    if folder.exists():
        raise InputError(f"{folder}: exists already; name a new folder")
    clients = list(client_ids(config))
    found = _check(nodes or {client: [client] for client in clients}, clients)
    build_server(config)  # what it names can be had, and no data is needed for it
    settings = DeploySettings(
        host=host,
        listen=host if host in LOOPBACK else "0.0.0.0",  # noqa: S104 - asked for by --host
        port=port,
        nodes={
            name: DeployedNode(clients=list(own), port=port + number)
            for number, (name, own) in enumerate(sorted(found.items()), start=1)
        },
    )
    with writing(str(folder)):
        _write(folder, config, settings)
    return settings


def _check(nodes: Mapping[str, Sequence[str]], clients: Sequence[str]) -> dict[str, list[str]]:
    placed = [client for own in nodes.values() for client in own]
    for name in nodes:
        check_name(name, "node name")
    for client in placed:
        if client not in clients:
            raise InputError(f"--node: no client {client!r}; clients: {', '.join(clients)}")
        if placed.count(client) > 1:
            raise InputError(f"--node: client {client!r} is on two nodes; allowed: one")
    missing = [client for client in clients if client not in placed]
    if missing:
        raise InputError(f"--node: no node for {', '.join(missing)}; every client needs one")
    return {name: list(own) for name, own in nodes.items()}


def _write(folder: Path, config: FederationConfig, settings: DeploySettings) -> None:
    authority = Authority.new()
    for part in (
        "ca",
        SERVER,
        f"{SERVER}/{APP}",
        "runs",
        *(f"{NODES}/{n}" for n in settings.nodes),
    ):
        (folder / part).mkdir(parents=True, mode=0o700)
    authority.write(folder / "ca")
    authority.certify(folder / SERVER, "server", [settings.host, *LOOPBACK])
    (folder / SERVER / "ca.pem").write_bytes(authority.pem)
    files = {entry.id: (entry.data, entry.test_data) for entry in config.clients}
    for name, node in settings.nodes.items():
        place = folder / NODES / name
        (place / "ca.pem").write_bytes(authority.pem)
        authority.certify(place, "tls", LOOPBACK)
        write_node_key(place)
        own = NodeSettings(
            clients={client: files.get(client, (None, None))[0] for client in node.clients},
            tests={c: files[c][1] for c in node.clients if c in files and files[c][1] is not None},
            data=config.data.path,
        )
        (place / NODE_FILE).write_text(to_yaml(own.model_dump(mode="json")), encoding="utf-8")
    (folder / DEPLOY_FILE).write_text(to_yaml(settings.model_dump(mode="json")), encoding="utf-8")
    flower = config.model_copy(update={"engine": "flower"})
    (folder / FEDERATION_FILE).write_text(sent_settings(flower), encoding="utf-8")
    _write_texts(folder, settings)


def _write_texts(folder: Path, settings: DeploySettings) -> None:
    """Scripts and pages, from `templates`."""
    own = {
        "address": settings.address,
        "host": settings.host,
        "listen": settings.listen,
        "port": str(settings.port),
        "programs": str(Path(sys.executable).parent),
        "nodes": " ".join(settings.nodes),
        "count": str(len(settings.nodes)),
    }
    for name, target in {
        "readme.md": "README.md",
        "start-all.sh": "start.sh",
        "stop-all.sh": "stop.sh",
        "start-server.sh": f"{SERVER}/start.sh",
        "app.toml": f"{SERVER}/{APP}/pyproject.toml",
        "app.md": f"{SERVER}/{APP}/README.md",
    }.items():
        _fill(name, folder / target, own)
    for node, entry in settings.nodes.items():
        more = {"node": node, "node_port": str(entry.port)}
        _fill("start-node.sh", folder / NODES / node / "start.sh", {**own, **more})


def _fill(name: str, target: Path, values: Mapping[str, str]) -> None:
    text = (resources.files("atlas") / "jobs/deploy/templates" / name).read_text(encoding="utf-8")
    target.write_text(Template(text).substitute(values), encoding="utf-8")
    if target.suffix == ".sh":
        target.chmod(SCRIPT)


def read_federation(folder: Path, overrides: Sequence[str] = ()) -> FederationConfig:
    """The federation of a deployment, with settings on top.

    Raises:
        InputError: It is missing or wrong.
    """
    from atlas.config.load import load_federation

    path = folder / FEDERATION_FILE
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; atlas deploy init {folder} makes it")
    if not overrides:
        found = parse_resolved(path.read_text(encoding="utf-8"), str(path))
        assert isinstance(found, FederationConfig)
        return found
    return load_federation(str(path), list(overrides))
