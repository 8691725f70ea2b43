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
