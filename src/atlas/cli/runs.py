"""Verbs that start runs or look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas.cli.common import (
    RUNS,
    Json,
    Out,
    Overrides,
    Run,
    Source,
    console,
    show_finished,
    show_result,
)


def run(
    source: Source = "demo",
    overrides: Overrides = None,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Run a job: a preset or a YAML file, with key=value settings on top.

    size=quick and size=full pick a smaller or larger form of it.
    """
    from atlas.config.load import load_config
    from atlas.jobs.runner import start_run
    from atlas.report.live import live_display

    if "=" in source and not source.endswith((".yaml", ".yml")):
        source, overrides = "demo", [source, *(overrides or [])]
    config = load_config(source, overrides or [])
    with live_display(console(to_stderr=as_json)) as display:
        finished = start_run(config, out, display.event, display.step)
    show_finished(finished, as_json)


def resume(
    name: Run,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="rounds=20 (train.steps=900 for a memory run): go on to a later end."),
    ] = None,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """Go on with a stopped or killed run from its last saved round, or with a finished one."""
    from atlas.jobs.runner import resume_run
    from atlas.jobs.show import find_run
    from atlas.report.live import live_display

    folder = find_run(name, out)
    with live_display(console(to_stderr=as_json)) as display:
        finished = resume_run(folder.path, display.event, display.step, overrides or [])
    show_finished(finished, as_json)


def plan(
    source: Source = "demo",
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show who would take part, who is like whom, and which ranks; no training."""
    from atlas.jobs.federation.plan import plan_run
    from atlas.report.live import PlanLine, live_display
    from atlas.report.tables.plan import plan_view

    with live_display(console(to_stderr=True), PlanLine()) as display:
        found = plan_run(source, overrides or [], display.event, display.step)
    show_result(found, as_json, lambda: plan_view(found))


def show(
    name: Annotated[str | None, typer.Argument(help="A run folder or name; none: all.")] = None,
    out: Out = RUNS,
    as_json: Json = False,
) -> None:
    """List runs, studies and newcomers, or show what one run or study came to."""
    from atlas.jobs.show import (
        describe_run,
        find_run,
        find_study,
        list_joins,
        list_runs,
        list_studies,
    )
    from atlas.report.tables.compare import compare_table
    from atlas.report.tables.runs import everything_view
    from atlas.report.words.ending import run_view, unfinished_view

    if name is None:
        rows, studies = list_runs(out), list_studies(out)
        joins = {row["run"]: list_joins(Path(row["path"])) for row in rows}
        show_result(rows, as_json, lambda: everything_view(rows, studies, joins))
        return
    if (study := find_study(name, out)) is not None:
        show_result(study, as_json, lambda: compare_table(study))
        return
    folder = find_run(name, out)
    found = describe_run(folder)
    if found["summary"] is None:
        show_result(found, as_json, lambda: unfinished_view(folder, found))
    else:
        show_result(found["summary"], as_json, lambda: run_view(folder, found))
