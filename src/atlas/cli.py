"""The verbs; each reads its arguments, calls a job and shows what came of it.

Nothing heavy is imported before a verb needs it, so that `atlas --help` answers at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas import __version__
from atlas.errors import InputError

app = typer.Typer(
    help="Language models made personal per token, per round and per federation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Out = Annotated[Path, typer.Option("--out", help="Folder that holds run folders.")]
Client = Annotated[str, typer.Option("--client", help="Client id.")]
Run = Annotated[str, typer.Argument(help="A run folder, or the name of one under --out.")]
RUNS = Path("runs")
WIDE = 200
"""Letters in a line of a file."""


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


@app.command()
def run(
    source: Annotated[str, typer.Argument(help="A preset's name or a YAML file.")] = "demo",
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value settings.")] = None,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Run a job: a preset or a YAML file, with key=value settings on top."""
    from atlas.config.load import load_config
    from atlas.jobs.run import start_run
    from atlas.report.live import live_display

    if "=" in source and not source.endswith((".yaml", ".yml")):
        source, overrides = "demo", [source, *(overrides or [])]
    config = load_config(source, overrides or [])
    with live_display(_console(to_stderr=as_json)) as display:
        finished = start_run(config, out, display.event, display.step)
    _show_finished(finished, as_json)


@app.command()
def resume(name: Run, out: Out = RUNS, as_json: Json = False) -> None:
    """Go on with a stopped or killed run from its last saved round."""
    from atlas.jobs.run import resume_run
    from atlas.jobs.show import find_run
    from atlas.report.live import live_display

    folder = find_run(name, out)
    with live_display(_console(to_stderr=as_json)) as display:
        finished = resume_run(folder.path, display.event, display.step)
    _show_finished(finished, as_json)


@app.command()
def plan(
    source: Annotated[str, typer.Argument(help="A preset's name or a YAML file.")] = "demo",
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value settings.")] = None,
    as_json: Json = False,
) -> None:
    """Show who would take part, who is like whom, and which ranks; no training."""
    from atlas.jobs.plan import plan_run
    from atlas.report.live import live_display
    from atlas.report.plan_tables import plan_view

    with live_display(_console(to_stderr=True)) as display:
        found = plan_run(source, overrides or [], display.event, display.step)
    _print(found, as_json, lambda: plan_view(found))


@app.command()
def compare(  # noqa: PLR0913
    source: Annotated[str, typer.Argument(help="A preset's name or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=a,b,c for each key compared.")
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", help="'key=value key=value' or 'label: key=value'; may be repeated."),
    ] = None,
    ceiling: Annotated[bool, typer.Option(help="Also run the ceiling, pooled.")] = True,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes at a time; they share the cores.")
    ] = 1,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Run every combination of comma values and arms, and compare them in one table."""
    from atlas.jobs.compare import run_study
    from atlas.jobs.study import plan_study
    from atlas.report.compare_tables import compare_table
    from atlas.report.live import live_display

    study = plan_study(source, overrides or [], arm or [], ceiling=ceiling)
    console = _console(to_stderr=True)

    def announce(number: int, total: int, combination: Mapping[str, str]) -> None:
        words = " ".join(f"{key}={value}" for key, value in combination.items())
        console.print(f"[{number}/{total}] {words}", markup=False, highlight=False)

    with live_display(console) as display:
        if workers > 1:
            study, whole = _run_apart(study, out, workers, console)
        else:
            whole = True
        result = run_study(study, out, announce, display.event, display.step) if whole else None
    if result is None:
        typer.echo("stopped; the same command goes on from here", err=True)
        return
    _print(result, as_json, lambda: compare_table(result))
    if not as_json:
        typer.echo(f"runs, compare.json, compare.csv and plots/: {out / study.name}")


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(help="A run folder or name; none: all.")] = None,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """List runs, or show one run's summary."""
    from atlas.jobs.show import describe_run, find_run, list_runs
    from atlas.report.tables import client_table, runs_table

    if name is None:
        rows = list_runs(out)
        _print(rows, as_json, lambda: runs_table(rows))
        return
    found = describe_run(find_run(name, out))
    if found["summary"] is None:
        _print(found, as_json, lambda: runs_table([found]))
    else:
        _print(found["summary"], as_json, lambda: client_table(found["summary"], found["tasks"]))


@app.command()
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
    from atlas.jobs.join import join_run
    from atlas.jobs.newcomer import Newcomer
    from atlas.jobs.show import find_run
    from atlas.report.join_table import join_view
    from atlas.report.live import live_display

    folder, asked = find_run(name, out), Newcomer(file, client, task, train)
    with live_display(_console(to_stderr=as_json)) as display:
        record = join_run(folder, asked, solo=solo, watch=display.event, progress=display.step)
    _print(record, as_json, lambda: join_view(record))
    if not as_json:
        typer.echo(f"adapter: {folder.adapters / record['client']}")


@app.command()
def export(
    name: Run,
    client: Client,
    to: Annotated[Path, typer.Option("--to", help="Folder to write.")],
    merged: Annotated[bool, typer.Option("--merged", help="Write the whole merged model.")] = False,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Write one client's adapter as a plain PEFT folder, or merged into the model."""
    from atlas.jobs.answer import export_client, export_merged
    from atlas.jobs.show import find_run

    write = export_merged if merged else export_client
    write(find_run(name, out), client, to)
    result = {"client": client, "folder": str(to), "merged": merged}
    _print(result, as_json, lambda: f"{'model' if merged else 'adapter'} of {client} is in {to}")


@app.command()
def predict(
    name: Run,
    texts: Annotated[list[str], typer.Argument(help="The text, or one per text field.")],
    client: Client,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Answer as one client's model would."""
    from atlas.jobs.answer import predict_texts
    from atlas.jobs.show import find_run

    result = predict_texts(find_run(name, out), client, texts)

    def text() -> str:
        if "probabilities" not in result:
            return str(result["answer"])
        shares = result["probabilities"].items()
        return f"{result['answer']}  ({', '.join(f'{k} {v:.3f}' for k, v in shares)})"

    _print(result, as_json, text)


@app.command("eval")
def evaluate(
    name: Run,
    file: Annotated[Path, typer.Argument(help="Labelled JSONL or CSV file.")],
    client: Client,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Score one client's model on a labelled file."""
    from atlas.jobs.answer import evaluate_file
    from atlas.jobs.show import find_run

    result = evaluate_file(find_run(name, out), client, file)
    _print(result, as_json, lambda: "\n".join(f"{k:>18}  {_value(v)}" for k, v in result.items()))


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="federation, memory, server or startup.")],
    size: Annotated[str, typer.Option("--size", help="quick, or full with every peer.")] = "full",
    out: Annotated[Path, typer.Option("--out", help="Folder for the JSON file and the plot.")] = (
        Path("benchmarks/results")
    ),
    as_json: Json = False,
) -> None:
    """Measure Atlas and its peers at the same work, in one run."""
    from atlas.bench.result import check_size, run_bench, save_bench
    from atlas.report.bench import bench_view
    from atlas.report.live import live_display

    with live_display(_console(to_stderr=True)) as display:
        found = run_bench(name, check_size(size), display.step)
    written = save_bench(found, out)
    plain = found.plain()
    _print(plain, as_json, lambda: bench_view(plain))
    if not as_json:
        typer.echo(f"written: {', '.join(map(str, written))}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what is installed and what each extra unlocks."""
    from atlas.jobs.doctor import examine, findings_table

    found = examine()
    _print(found, as_json, lambda: findings_table(found))


def _run_apart(study: Any, out: Path, workers: int, console: Any) -> tuple[Any, bool]:  # noqa: ANN401
    """Finish a study's runs in several processes; the study as run, and whether all are done."""
    import os

    from atlas.jobs.workers import run_apart, with_threads

    study = with_threads(study, max(1, (os.cpu_count() or 1) // workers))
    jobs = study.jobs()

    def say(number: int, news: str) -> None:
        words = " ".join(f"{key}={value}" for key, value in jobs[number - 1][0].keys.items())
        line = f"[{number}/{len(jobs)}] {words}: {news}"
        console.print(line, markup=False, highlight=False)

    return study, run_apart(study, out / study.name, workers, say)


def _value(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _console(*, to_stderr: bool) -> Any:  # noqa: ANN401 - rich is imported late
    from rich.console import Console

    return Console(stderr=to_stderr)


def _print(result: object, as_json: bool, render: Any) -> None:  # noqa: ANN401
    """JSON for machines; otherwise whatever `render` makes for people."""
    if as_json:
        typer.echo(json.dumps(result, indent=2, sort_keys=True))
    else:
        shown = render()
        if isinstance(shown, str):
            typer.echo(shown)
        else:
            console = _console(to_stderr=False)
            # A file has no edge at which to cut a table, and a terminal wraps what is too long.
            console.width = console.width if console.is_terminal else max(console.width, WIDE)
            console.print(shown, crop=False)


def _show_finished(finished: Any, as_json: bool) -> None:  # noqa: ANN401
    """The table (or JSON) of a finished run and where its results are."""
    from atlas.jobs.show import describe_run
    from atlas.report.tables import client_table

    folder = finished.folder
    if finished.summary is None:
        done = describe_run(folder)
        result: Mapping[str, object] = {"run": str(folder.path), "stopped_after": done["done"]}
        _print(
            result,
            as_json,
            lambda: f"stopped after round {done['done']}; go on with: atlas resume {folder.path}",
        )  # noqa: E501
        return
    tasks = describe_run(folder)["tasks"]
    _print(finished.summary, as_json, lambda: client_table(finished.summary, tasks))
    if not as_json:
        typer.echo(f"run folder: {folder.path}   adapters: {folder.adapters}")


def main() -> None:
    """Run the command line; bad input exits with 2, a failed run with 1."""
    try:
        app()
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted; what was saved is kept", err=True)
        sys.exit(130)
    except (RuntimeError, OSError, MemoryError) as error:
        typer.echo(f"failed: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
