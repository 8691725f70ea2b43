"""What several verbs share: their arguments, and results as JSON, tables or lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas.runs.ranks import follows

STOPPED = 130
"""Exit code of a run or study that Ctrl-C or SIGTERM ended after a saved round, as shells use it
for what Ctrl-C ended: a script must not take an unfinished run for a finished one."""
WIDE = 200
"""Letters in a line of a file."""


def console(*, to_stderr: bool) -> Any:  # noqa: ANN401 - rich is imported late
    """Where lines go."""
    from rich.console import Console

    return Console(stderr=to_stderr, quiet=follows())


def show_result(result: object, as_json: bool, render: Any) -> None:  # noqa: ANN401
    """JSON for machines; otherwise whatever `render` makes for people.

    Of several processes that make a run (torchrun) only the first one speaks.
    """
    if follows():
        return
    if as_json:
        typer.echo(json.dumps(result, indent=2, sort_keys=True))
    else:
        shown = render()
        if isinstance(shown, str):
            from atlas.report.words.plain_text import spelled

            typer.echo(spelled(shown))
        else:
            page = console(to_stderr=False)
            # A file has no edge at which to cut a table, and a terminal wraps what is too long.
            page.width = page.width if page.is_terminal else max(page.width, WIDE)
            page.print(shown, crop=False)


def show_finished(finished: Any, as_json: bool) -> None:  # noqa: ANN401
    """The table (or JSON) of a finished run and where its results are."""
    from atlas.jobs.show import describe_run
    from atlas.report.words.ending import run_view

    folder = finished.folder
    if finished.summary is None:
        done = describe_run(folder)
        result: Mapping[str, object] = {"run": str(folder.path), "stopped_after": done["done"]}
        show_result(
            result,
            as_json,
            lambda: f"stopped after round {done['done']}; go on with: atlas resume {folder.path}",
        )
        raise typer.Exit(STOPPED)
    found = describe_run(folder)
    show_result(finished.summary, as_json, lambda: run_view(folder, found))


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Out = Annotated[Path, typer.Option("--out", help="Folder that holds run folders.")]
Client = Annotated[str | None, typer.Option("--client", help="Client id, of a federation.")]
Arm = Annotated[str | None, typer.Option("--arm", help="Arm of a memory run; default: the first.")]
Run = Annotated[str, typer.Argument(help="A run folder, or the name of one under --out.")]
RunOrModel = Annotated[
    str,
    typer.Argument(
        help="A run folder, the name of one under --out, or a folder with a saved memory model."
    ),
]
Source = Annotated[
    str, typer.Argument(help="A preset's name (atlas presets lists them) or a YAML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="key=value settings, listed by: atlas settings. size=quick and size=full pick a "
        "smaller or larger form of the run, where the preset or file has one under sizes."
    ),
]
RUNS = Path("runs")
