"""Verbs about one client of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas.cli.common import RUNS, Client, Json, Out, Run, console, show_result


def join(  # noqa: PLR0913
    name: Run,
    file: Annotated[Path, typer.Argument(help="The newcomer's labelled JSONL or CSV file.")],
    client: Annotated[
        str | None, typer.Option("--client", help="Its id; default: the file's name.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Its task; default: the run's that fits.")
    ] = None,
    train: Annotated[
        int | None,
        typer.Option("--train", min=1, help="Most training examples; default: the run's."),
    ] = None,
    solo: Annotated[bool, typer.Option(help="Also train the newcomer alone, to compare.")] = True,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Place a newcomer in a finished run and give it a first adapter."""
    from atlas.jobs.join.join import join_run
    from atlas.jobs.join.newcomer import Newcomer
    from atlas.jobs.show import find_run
    from atlas.report.live import live_display
    from atlas.report.tables.join import join_view

    folder, asked = find_run(name, out), Newcomer(file, client, task, train)
    with live_display(console(to_stderr=as_json)) as display:
        record = join_run(folder, asked, solo=solo, watch=display.event, progress=display.step)
    show_result(record, as_json, lambda: join_view(record))
    if not as_json:
        typer.echo(f"adapter: {folder.adapters / record['client']}")


def export(
    name: Run,
    client: Client,
    to: Annotated[Path, typer.Option("--to", help="Folder to write.")],
    merged: Annotated[bool, typer.Option("--merged", help="Write the whole merged model.")] = False,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Write one client's adapter as a plain PEFT folder, or merged into the model."""
    from atlas.jobs.federation.answer import export_client, export_merged
    from atlas.jobs.show import find_run

    write = export_merged if merged else export_client
    write(find_run(name, out), client, to)
    result = {"client": client, "folder": str(to), "merged": merged}
    show_result(
        result, as_json, lambda: f"{'model' if merged else 'adapter'} of {client} is in {to}"
    )


def predict(
    name: Run,
    texts: Annotated[list[str], typer.Argument(help="The text, or one per text field.")],
    client: Client,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Answer as one client's model would."""
    from atlas.jobs.federation.answer import predict_texts
    from atlas.jobs.show import find_run

    result = predict_texts(find_run(name, out), client, texts)

    def text() -> str:
        if "probabilities" not in result:
            return str(result["answer"])
        shares = result["probabilities"].items()
        return f"{result['answer']}  ({', '.join(f'{k} {v:.3f}' for k, v in shares)})"

    show_result(result, as_json, text)


def evaluate(
    name: Run,
    file: Annotated[Path, typer.Argument(help="Labelled JSONL or CSV file.")],
    client: Client,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Score one client's model on a labelled file."""
    from atlas.jobs.federation.answer import evaluate_file
    from atlas.jobs.show import find_run

    result = evaluate_file(find_run(name, out), client, file)
    show_result(
        result, as_json, lambda: "\n".join(f"{k:>18}  {_value(k, v)}" for k, v in result.items())
    )


def _value(name: str, value: object) -> str:
    """Scores in percent, as tables show them; a loss is none."""
    from atlas.report.tables.runs import percent

    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if name == "loss" else percent(value)
