"""The verbs; each reads its arguments, calls a job and shows what came of it.

Nothing heavy is imported before a verb needs it, so that `atlas --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, get_type_hints

import typer

from atlas import __version__
from atlas.cli import catalogue, clients, deploy, machine, memory, pages, runs, serve, studies
from atlas.cli.common import STOPPED
from atlas.errors import InputError
from atlas.runs.ranks import follows

app = typer.Typer(
    help="Language models made personal per token, per round and per federation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(runs.run)
app.command()(runs.resume)
app.command()(runs.plan)
app.command()(studies.compare)
app.command()(runs.show)
app.command()(pages.report)
app.command()(pages.ui)
app.command()(clients.join)
app.command()(clients.export)
app.command()(clients.predict)
app.command("eval")(clients.evaluate)
app.command()(serve.serve)
app.command()(memory.generate)
app.command()(catalogue.presets)
app.command()(catalogue.strategies)
app.command()(catalogue.settings)
app.command()(machine.bench)
app.command()(machine.doctor)
app.add_typer(deploy.app, name="deploy")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"atlas {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def command_line() -> Any:  # noqa: ANN401 - a click group, which typer does not name
    """The verbs as click commands, with the help of their arguments.

    click 8.5 forgets what typer 0.20 tells it of arguments, so it is told again.
    """
    group: Any = typer.main.get_command(app)
    for command in _leaves(group):
        told = get_type_hints(command.callback, include_extras=True)
        for parameter in command.params:
            notes = getattr(told.get(parameter.name), "__metadata__", ())
            for note in notes if parameter.param_type_name == "argument" else ():
                parameter.help = note.help
    return group


def _leaves(group: Any) -> Iterator[Any]:  # noqa: ANN401
    """The verbs themselves; a group of them is none."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from _leaves(command)
        else:
            yield command


def main() -> None:
    """Run the command line; bad input exits with 2, a failed run with 1, a stopped one with 130."""
    try:
        command_line()()
    except InputError as error:
        if not follows():  # of several processes that make a run the first one says it
            typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted; what was saved is kept", err=True)
        sys.exit(STOPPED)
    except (RuntimeError, OSError, MemoryError) as error:
        typer.echo(f"failed: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
