"""The verb that compares many runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from atlas.cli.common import RUNS, STOPPED, Json, Out, Source, console, show_result


def compare(  # noqa: PLR0913
    source: Source,
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
    from atlas.jobs.study.cases import plan_study
    from atlas.jobs.study.compare import run_study
    from atlas.jobs.study.workers import finish_apart
    from atlas.report.live import live_display
    from atlas.report.tables.compare import compare_table

    study = plan_study(source, overrides or [], arm or [], ceiling=ceiling)
    lines = console(to_stderr=True)

    def announce(number: int, total: int, combination: Mapping[str, str]) -> None:
        words = " ".join(f"{key}={value}" for key, value in combination.items())
        lines.print(f"[{number}/{total}] {words}", markup=False, highlight=False, soft_wrap=True)

    with live_display(lines) as display:
        whole, told = True, announce if workers == 1 else None
        if workers > 1:
            jobs = study.jobs()

            def say(number: int, news: str) -> None:
                words = " ".join(f"{k}={value}" for k, value in jobs[number - 1][0].keys.items())
                line = f"[{number}/{len(jobs)}] {words}: {news}"
                lines.print(line, markup=False, highlight=False, soft_wrap=True)

            study, whole = finish_apart(study, out, workers, say)
        # What workers have announced and finished is only read now, and not announced again.
        result = run_study(study, out, told, display.event, display.step) if whole else None
    if result is None:
        typer.echo("stopped; the same command goes on from here", err=True)
        raise typer.Exit(STOPPED)
    show_result(result, as_json, lambda: compare_table(result))
    if not as_json:
        typer.echo(f"runs, compare.json, compare.csv and plots/: {out / study.name}")
        if (page := out / study.name / "report.html").exists():
            typer.echo(f"report: {page} (open it in a browser; it needs no network)")
