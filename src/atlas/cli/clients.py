"""Verbs that use one model of a run: a client's, or that of a memory run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas.cli.common import (
    RUNS,
    Arm,
    Client,
    Json,
    Out,
    Run,
    RunOrModel,
    console,
    show_result,
)


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


def export(  # noqa: PLR0913
    name: RunOrModel,
    to: Annotated[Path, typer.Option("--to", help="Folder to write.")],
    client: Client = None,
    arm: Arm = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="Write the client's whole merged model.")
    ] = False,
    whole: Annotated[
        bool,
        typer.Option("--all", help="All clients into one folder, for servers of many adapters."),
    ] = False,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Write models for others: PEFT adapters of one client or of all, or an arm of a memory run."""
    from atlas.jobs.answer import Asked, export_clients
    from atlas.jobs.answer import export as export_asked

    if whole:
        found = export_clients(Asked(name, out, client, arm), to, merged=merged)
        show_result(found, as_json, lambda: _exported(found))
        return
    result = export_asked(Asked(name, out, client, arm), to, merged=merged)
    what = "adapter" if "client" in result and not merged else "model"
    whose = result.get("client") or result.get("arm") or name
    show_result(result, as_json, lambda: f"{what} of {whose} is in {to}")


VLLM_DEFAULT_RANK = 16
"""The largest rank of adapters that vLLM takes unless it is told otherwise."""


def _exported(found: Mapping[str, Any]) -> str:
    """What is in the folder of all clients, and who is not."""
    from atlas.report.words.english import counted, listed

    place = found["folder"]
    count = counted(len(found["clients"]), "adapter")
    lines = [f"{count} in {place}; how to serve them: {place}/README.md"]
    for reason in dict.fromkeys(found["refused"].values()):
        whose = [client for client, why in found["refused"].items() if why == reason]
        lines.append(f"for PEFT, not for vLLM and LoRAX: {listed(whose)}; each because {reason}")
    if (found["max_lora_rank"] or 0) > VLLM_DEFAULT_RANK:
        lines.append(
            f"vLLM must be started with --max-lora-rank {found['max_lora_rank']}, or it refuses "
            f"adapters of a rank above {VLLM_DEFAULT_RANK}"
        )
    lines += [f"left out: {client}: {why}" for client, why in found["left_out"].items()]
    return "\n".join(lines)


def predict(  # noqa: PLR0913
    name: RunOrModel,
    texts: Annotated[
        list[str] | None, typer.Argument(help="The text, or one per text field.")
    ] = None,
    client: Client = None,
    arm: Arm = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            help="Many texts: a CSV, JSONL or text file, or - for stdin. Rows "
            "with a column client are answered by that client.",
        ),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="Of --file: csv, jsonl or txt; by its suffix.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="CSV or JSONL file for the answers of --file.")
    ] = None,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Answer as one client's model would; of a memory model, the likeliest next tokens."""
    from atlas.errors import InputError
    from atlas.jobs.answer import Asked
    from atlas.jobs.answer import predict as predict_asked
    from atlas.report.live import live_display
    from atlas.report.words.memory import next_words

    if file is not None:
        if texts:
            raise InputError(f"--file {file}: texts are given, too; allowed: one of both")
        _predict_file(Asked(name, out, client, arm), file, form, to)
        return
    if not texts:
        raise InputError("no text given; allowed: a text, or --file")
    with live_display(console(to_stderr=True)) as display:
        result = predict_asked(Asked(name, out, client, arm), texts, display.step)

    def text() -> str:
        if "next" in result:
            return next_words(result)
        if "probabilities" not in result:
            return str(result["answer"])
        shares = result["probabilities"].items()
        return f"{result['answer']}  ({', '.join(f'{k} {v:.3f}' for k, v in shares)})"

    show_result(result, as_json, text)


def _predict_file(asked: Any, file: str, form: str | None, to: Path | None) -> None:  # noqa: ANN401
    """Write all answers, then name the rows that have none."""
    from atlas.data.questions import to_text
    from atlas.errors import InputError
    from atlas.jobs.answer import predict_file
    from atlas.runs.files import write_text_atomic, writing

    if to is not None:
        # Before any work: a form that is not written, and a place that cannot be.
        to_text([], to.suffix.lower().removeprefix("."))
        if not to.parent.is_dir():
            raise InputError(f"--to {to}: cannot be written: {to.parent} is no folder")
    batch = predict_file(asked, file, form)
    if to is None:
        typer.echo(to_text(batch.rows, "jsonl"), nl=False)
    else:
        with writing(f"--to {to}"):
            write_text_atomic(to, to_text(batch.rows, to.suffix.lower().removeprefix(".")))
        typer.echo(f"{len(batch.rows) - len(batch.bad)} of {len(batch.rows)} rows answered: {to}")
    for reason in batch.bad:
        typer.echo(f"not answered: {reason}", err=True)
    if batch.bad:
        raise typer.Exit(2)


def evaluate(  # noqa: PLR0913
    name: RunOrModel,
    file: Annotated[
        Path,
        typer.Argument(help="Labelled JSONL or CSV file; for a memory model, any text file."),
    ],
    client: Client = None,
    arm: Arm = None,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Score one client's model on a labelled file, or a memory model on a text."""
    from atlas.jobs.answer import Asked
    from atlas.jobs.answer import evaluate as evaluate_asked
    from atlas.report.live import live_display
    from atlas.report.words.memory import score_words

    with live_display(console(to_stderr=True)) as display:
        result = evaluate_asked(Asked(name, out, client, arm), file, display.step)

    def text() -> str:
        if "bits_per_byte" in result:
            return score_words(result)
        return "\n".join(f"{k:>18}  {_value(k, v)}" for k, v in result.items())

    show_result(result, as_json, text)


def _value(name: str, value: object) -> str:
    """Scores in percent, as tables show them; a loss is none."""
    from atlas.report.tables.runs import percent

    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if name == "loss" else percent(value)
