"""Verbs of a deployment on Flower: make its folder, start runs on it, see what is reachable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from atlas.cli.common import Json, Overrides, Source, console, show_finished, show_result

app = typer.Typer(
    help="A federation over machines, on Flower: certificates, keys, scripts, runs.",
    no_args_is_help=True,
)
Folder = Annotated[Path, typer.Argument(help="The deployment's folder.")]
Wait = Annotated[float, typer.Option("--wait", help="Seconds to wait for what is not there yet.")]


def _needs_flower() -> None:
    from atlas.build.federation import check_flower

    check_flower("atlas deploy")


@app.command()
def init(  # noqa: PLR0913
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    source: Source = "demo",
    overrides: Overrides = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", help="NAME=client,client; default: a node for every client."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Where nodes reach the server; default: this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The server's; nodes get the next.")] = 9400,
    as_json: Json = False,
) -> None:
    """Write a ready folder: certificates, node keys, settings, start scripts, a README."""
    _needs_flower()
    from atlas.config.load import load_federation
    from atlas.errors import InputError
    from atlas.jobs.deploy.folder import make_deployment

    nodes = {}
    for text in node or []:
        name, sign, clients = text.partition("=")
        if not (name and sign and clients):
            raise InputError(f"--node {text}: allowed: NAME=client,client")
        nodes[name] = clients.split(",")
    config = load_federation(source, overrides or [])
    made = make_deployment(folder, config, nodes, host, port).model_dump(mode="json")
    shown = (
        f"written: {folder} with {len(made['nodes'])} nodes; start it by {folder}/start.sh, "
        f"read {folder}/README.md"
    )
    show_result({"folder": str(folder), **made}, as_json, lambda: shown)


@app.command()
def check(folder: Folder, wait: Wait = 0.0, as_json: Json = False) -> None:
    """Tell what is reachable: the port, the server's certificate, every node."""
    _needs_flower()
    from atlas.jobs.deploy.operate import check as look

    found = look(folder, wait)
    show_result(found, as_json, lambda: _check_view(found))
    if not found["ready"]:
        raise typer.Exit(1)


def _check_view(found: dict[str, Any]) -> Any:  # noqa: ANN401 - rich is imported late
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_row("port", found["address"], "open" if found["port"] else "closed")
    table.add_row("certificate", "", "holds" if found["tls"] else "does not hold")
    table.add_row("server", "", found["server"])
    for name, node in found["nodes"].items():
        table.add_row("node", name, node["state"], ", ".join(node["clients"]))
    return table


@app.command()
def register(folder: Folder, wait: Wait = 60.0) -> None:
    """Make the nodes' keys known to the server; server/start.sh does it."""
    _needs_flower()
    from atlas.jobs.deploy.operate import register_nodes

    new = register_nodes(folder, wait)
    typer.echo(f"registered: {', '.join(new)}" if new else "all nodes are registered")


@app.command()
def run(
    folder: Folder,
    overrides: Overrides = None,
    resume: Annotated[
        str, typer.Option("--resume", help="Go on with this run of the folder's runs/.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Make a run on a deployment that is started, and follow it; a failed one exits with 1."""
    _needs_flower()
    from atlas.jobs.deploy.operate import run_deployed
    from atlas.report.live import live_display

    with live_display(console(to_stderr=as_json)) as display:
        finished = run_deployed(folder, overrides or [], resume, display.event)
    show_finished(finished, as_json)
