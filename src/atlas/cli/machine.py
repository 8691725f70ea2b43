"""Verbs about this machine: how fast Atlas is on it, and what is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas.cli.common import Json, console, show_result


def bench(
    name: Annotated[
        str, typer.Argument(help="federation, memory, memory-model, serve, server or startup.")
    ],
    size: Annotated[str, typer.Option("--size", help="quick, or full with every peer.")] = "full",
    out: Annotated[Path, typer.Option("--out", help="Folder for the JSON file and the plot.")] = (
        Path("benchmarks/results")
    ),
    as_json: Json = False,
) -> None:
    """Measure Atlas and its peers at the same work, in one run."""
    from atlas.bench.processes import check_folder, check_size, run_bench, save_bench
    from atlas.report.bench import bench_view
    from atlas.report.live import live_display
    from atlas.runs.files import writing

    check_folder(out)
    with live_display(console(to_stderr=True)) as display:
        found = run_bench(name, check_size(size), display.step)
    with writing(f"--out {out}"):
        written = save_bench(found, out)
    plain = found.plain()
    show_result(plain, as_json, lambda: bench_view(plain))
    if not as_json:
        typer.echo(f"written: {', '.join(map(str, written))}")


def doctor(as_json: Json = False) -> None:
    """Say what is installed and what each extra unlocks."""
    from atlas.jobs.doctor import examine, findings_table

    found = examine()
    show_result(found, as_json, lambda: findings_table(found))
