"""The verb that lets a memory model write."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atlas.cli.common import RUNS, Arm, Json, Out, RunOrModel, console
from atlas.errors import InputError

if TYPE_CHECKING:
    from atlas.jobs.memory.generate import Writer


def generate(  # noqa: PLR0913
    name: RunOrModel,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Text to go on from; none: lines are asked for.")
    ] = None,
    read: Annotated[
        Path | None, typer.Option("--read", help="A text file to take into memory first.")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Most tokens to write.")] = 200,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0: always the likeliest token.")
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Choose among so many of the likeliest.")
    ] = None,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Choose among the likeliest of this share together.")
    ] = 0.95,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Every draw follows it.")] = 0,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Go on from line after line of standard input.")
    ] = False,
    load: Annotated[
        Path | None, typer.Option("--load", help="Go on from what --save wrote.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write what is remembered at the end.")
    ] = None,
    arm: Arm = None,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Write text with a memory model, which remembers what it read and wrote."""
    from atlas.jobs.memory.generate import open_writer, sampling
    from atlas.jobs.memory.saved_model import find_model
    from atlas.report.live import live_display

    asks = interactive or (prompt is None and read is None and load is None)
    if asks and not interactive and not sys.stdin.isatty():
        raise InputError("--prompt: missing; or --interactive, to read lines of standard input")
    how = sampling(temperature, top_k, top_p, seed)
    with live_display(console(to_stderr=True)) as display:
        writer = open_writer(find_model(name, out, arm), how)
        if load is not None:
            writer.recall(load)
        if read is not None:
            writer.take_in(read, display.step)
    if not asks or prompt is not None:
        _say(writer, prompt or "", tokens, as_json)
    for line in _lines() if asks else ():
        _say(writer, line, tokens, as_json, echo=False)
    if save is not None:
        writer.reader.save(save)


def _lines() -> Iterator[str]:
    """Lines of standard input, asked for where somebody types them; an empty end stops."""
    while True:
        if sys.stdin.isatty():
            typer.echo("> ", nl=False)
        line = sys.stdin.readline()
        if not line:
            return
        yield line.rstrip("\n")


def _say(writer: Writer, prompt: str, tokens: int, as_json: bool, *, echo: bool = True) -> None:
    """One answer: piece by piece for people, behind the prompt if they did not just type it."""
    if not as_json and echo:
        typer.echo(prompt, nl=False)
    for piece in writer.answer(prompt, tokens):
        if not as_json:
            typer.echo(piece, nl=False)
            sys.stdout.flush()
    typer.echo(json.dumps(writer.facts(), sort_keys=True) if as_json else "")
