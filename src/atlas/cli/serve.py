"""The verb that answers over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas.cli.common import RUNS, Json, Run


def serve(  # noqa: PLR0913
    name: Run,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at; others than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="ATLAS_TOKEN", help="What requests must bring as Bearer."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder that holds run folders.")] = RUNS,
    as_json: Json = False,
) -> None:
    """Answer as a finished run's clients over HTTP, all adapters over one backbone in memory."""
    from atlas.jobs.serve.server import serve_run
    from atlas.jobs.show import find_run
    from atlas.report.words.english import counted

    def ready(serving: Any) -> None:  # noqa: ANN401 - a `Serving`
        if as_json:
            typer.echo(json.dumps(vars(serving)))
        else:
            who = counted(len(serving.clients), "client")
            typer.echo(f"serving {who} of {serving.run} over {', '.join(serving.backbones)}")
            typer.echo(f"at {serving.address}, with the run's page; Ctrl-C ends it")
            if serving.token and not token:
                typer.echo(f"token: {serving.token}")

    serve_run(find_run(name, out), host, port, token, ready)
