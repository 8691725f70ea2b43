"""Verbs that make runs a page to look at: a report in one file, or a live page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas.cli.common import RUNS, Json, Out, show_result


def report(
    names: Annotated[
        list[str], typer.Argument(help="Run folders, or names under --out; or one study.")
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="File to write; default: report.html in the first.")
    ] = None,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Write one HTML file with charts and tables of a run, of several, or of a study."""
    from atlas.jobs.show import find_folder
    from atlas.report.html.page import make_report

    made = make_report([find_folder(name, out) for name in names], to)

    def words() -> str:
        lines = [f"report: {made['report']} (open it in a browser; it needs no network)"]
        return "\n".join([*lines, *(f"missing: {told}" for told in made["missing"])])

    show_result(made, as_json, words)


def ui(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = 8400,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to listen to; others than this machine's own "
            "loopback need the token that is printed.",
        ),
    ] = "127.0.0.1",
    root: Annotated[Path, typer.Option("--root", help="Folder that holds run folders.")] = RUNS,
    token: Annotated[
        str | None, typer.Option("--token", envvar="ATLAS_TOKEN", help="The token to ask for.")
    ] = None,
) -> None:
    """Serve a page over all runs: it follows those under way and compares those chosen."""
    from atlas.errors import InputError
    from atlas.report.live.serve import listen, need_server, serve

    need_server()
    if not root.is_dir():
        raise InputError(f"--root {root}: no such folder; start a run with: atlas run demo")
    from atlas.report.live.access import Access
    from atlas.report.live.app import create_app, page_router

    access = Access.to(host, token)
    with listen(host, port) as listening:
        place = access.address(listening.getsockname()[1])
        typer.echo(f"runs of {root}: {place}  (Ctrl-C ends it)")
        serve(create_app(access, [page_router(root)]), listening)
