"""What a newcomer's join looks like on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atlas.report.tables.runs import percent, task_text


def join_view(record: Mapping[str, Any]) -> Group:
    """Where the newcomer belongs, whom it starts from, and what that is worth."""
    return Group(*_parts(record))


def _parts(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(_title(record))
    if record["affinities"]:
        yield cluster_table(record)
    if record["neighbours"]:
        yield neighbour_table(record)
    yield score_table(record)
    for warning in record["warnings"]:
        yield Text(warning, style="yellow")


def _title(record: Mapping[str, Any]) -> str:
    cluster = record["cluster"]
    where = "joined" if cluster is None else f"joined cluster {cluster}"
    counts = ", ".join(f"{count} {part}" for part, count in record["examples"].items())
    return f"{record['client']} {where}: {counts} examples, {record['seconds']:.0f} s"


def cluster_table(record: Mapping[str, Any]) -> Table:
    """Mean affinity to every cluster, the newcomer's own with a star."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0))
    table.add_column("cluster", justify="right")
    table.add_column("affinity", justify="right")
    for cluster, mean in record["affinities"].items():
        own = cluster == str(record["cluster"])
        table.add_row(
            f"{'*' if own else ''}{cluster}", f"{mean:.2f}", style="bold" if own else None
        )
    return table


def neighbour_table(record: Mapping[str, Any]) -> Table:
    """What each neighbour counts in the first adapter."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0))
    table.add_column("neighbour", no_wrap=True)
    table.add_column("share", justify="right")
    for client, share in record["neighbours"].items():
        table.add_row(client, f"{share:.2f}")
    return table


def score_table(record: Mapping[str, Any]) -> Table:
    """Test scores in percent of the task's own metric, named where it is not accuracy."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0))
    table.add_column("task", no_wrap=True)
    scores = {name: score for name, score in record["scores"].items() if score is not None}
    for name in scores:
        table.add_column(name, justify="right")
    task = task_text(record["task"], record["metric"])
    table.add_row(task, *(percent(score) for score in scores.values()))
    return table
