"""What a plan looks like on a terminal: who takes part, and who would learn from whom."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atlas.config.plan import MAKE_ROOM, MB
from atlas.report.read.clusters import origin_of, tree_text
from atlas.report.tables.data import data_lines
from atlas.report.tables.runs import percent, ranks_text
from atlas.report.words.budgets import beyond, lowered

MOST_RANKS = 4
"""Ranks of a client that are listed one by one."""
MOST_NAMED = 3
"""Clients named in a warning; the rest is counted."""


def plan_view(plan: Mapping[str, Any]) -> Group:
    """The clients, their own files, what was planned for each cohort, and what was granted."""
    shown: list[RenderableType] = [plan_table(plan)]
    shown += [Text(line) for line in data_lines(plan.get("data") or {})]
    for planned in plan.get("planned") or []:
        shown += cohort_view(planned)
    if plan.get("budgets"):
        shown += budget_view(plan["budgets"])
    return Group(*shown)


def plan_table(plan: Mapping[str, Any]) -> Table:
    """Who would take part, with how much data and which ranks."""
    table = Table(title=f"plan of {plan['strategy']}", title_justify="left", box=SIMPLE_HEAD)
    for column in ("client", "task", "backbone"):
        table.add_column(column)
    for column in ("train", "validation", "test", "ranks"):
        table.add_column(column, justify="right")
    for client, facts in plan["clients"].items():
        words = [client, facts["task"], facts["backbone"]]
        counts = [str(facts[split]) for split in ("train", "validation", "test")]
        table.add_row(*words, *counts, ranks_text(plan["ranks"][client]))
    return table


def cohort_view(planned: Mapping[str, Any]) -> Iterator[RenderableType]:
    """One cohort: its fingerprints, the splits tried, the clusters chosen, warnings."""
    yield Text(parts_text(planned))
    clusters = planned.get("clusters")
    if clusters:
        if clusters.get("tried"):
            yield tried_table(clusters)
        yield Text(clusters_text(clusters))
        if clusters.get("table"):
            yield cluster_table(clusters)
        yield Text(agreement_text(clusters))
    for warning in planned.get("warnings") or []:
        yield Text(warning, style="yellow")


def parts_text(planned: Mapping[str, Any]) -> str:
    """How far each part of the fingerprints can be relied on, and what they keep."""
    explained = planned.get("explained")
    kept = "" if explained is None else f", explained variance {percent(explained)} %"
    parts = [
        f"{name} {_figure(facts.get('reliability'))} (weight {_figure(facts.get('weight'))})"
        for name, facts in (planned.get("parts") or {}).items()
    ]
    reliability = f"\n  reliability: {', '.join(parts)}" if parts else ""
    return f"fingerprints of {planned['cohort']}{kept}{reliability}"


def tried_table(clusters: Mapping[str, Any]) -> Table:
    """One row per k tried, with a star where the split is the partition in use.

    Where clusters were split again, none of the rows is: the one that it began from has a plus.
    """
    table = Table(title="splits tried", title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    for column in ("k", "silhouette", "DB", "CH", "score", "stability", "real", "useful"):
        table.add_column(column, justify="right", no_wrap=True)
    keys = ("silhouette", "davies_bouldin", "calinski_harabasz", "score", "stability")
    for row in clusters["tried"]:
        mark = tried_mark(clusters, row["k"])
        table.add_row(
            f"{mark}{row['k']}",
            *(_figure(row.get(key)) for key in keys),
            *({True: "yes", False: "no"}.get(row.get(key), "") for key in ("real", "useful")),
            style="bold" if mark else None,
        )
    return table


def tried_mark(clusters: Mapping[str, Any], k: int) -> str:
    """`*` beside the k in use, `+` beside the one whose clusters were split again."""
    origin = origin_of(clusters)
    if k != origin.k:
        return ""
    return "+" if origin.parted else "*"


def clusters_text(clusters: Mapping[str, Any]) -> str:
    """How many clusters there are and how far they stand apart."""
    apart = _figure(clusters.get("silhouette"))
    told = f"clusters by {clusters['method']}, k = {clusters['k']}, silhouette {apart}"
    origin = origin_of(clusters)
    if origin.dropped:
        told += (
            f"\n  of the {origin.k} in the sample, {origin.dropped} held a single client and went "
            "to the rest"
        )
    if not origin.parted or not clusters.get("tree"):
        return told
    kin = [f"{one} and {two} have {_figure(alike)}" for one, two, alike in clusters["kin"]]
    common = f"; in common, of 1: {', '.join(kin)}" if kin else ""
    return (
        f"{told}\n  in use: the {origin.k} of + split again, {tree_text(clusters['tree'])}{common}"
    )


def cluster_table(clusters: Mapping[str, Any]) -> Table:
    """How many clients of each task every cluster holds."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0))
    held: Mapping[str, Mapping[str, int]] = clusters["table"]
    tasks = sorted({task for counts in held.values() for task in counts})
    table.add_column("cluster")
    for task in (*tasks, "all"):
        table.add_column(task or "unknown", justify="right", no_wrap=True)
    for cluster in sorted(held, key=int):
        counts = [held[cluster].get(task, 0) for task in tasks]
        words = [str(count) if count else "" for count in counts]
        table.add_row(str(cluster), *words, str(sum(counts)))
    return table


def agreement_text(clusters: Mapping[str, Any]) -> str:
    """How far the clusters are the tasks."""
    purity = clusters.get("purity") or {}
    return (
        f"purity mean {_figure(purity.get('mean'))}, weighted {_figure(purity.get('weighted'))}; "
        f"ARI {_figure(clusters.get('ari'))}"
    )


def budget_view(budgets: Mapping[str, Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Grants, to whom a trial step left less, and whose training does not fit."""
    yield budget_table(budgets)
    if less := lowered(budgets):
        yield Text(f"a trial step took more than the budget, so less was granted: {_some(less)}")
    if over := beyond(budgets):
        told = f"with nothing left to lower, training takes more than the budget: {_some(over)}"
        yield Text(f"{told}; {MAKE_ROOM}", style="yellow")


def _some(clients: Sequence[str]) -> str:
    more = f" and {len(clients) - MOST_NAMED} more" if len(clients) > MOST_NAMED else ""
    return ", ".join(clients[:MOST_NAMED]) + more


def budget_table(budgets: Mapping[str, Mapping[str, Any]]) -> Table:
    """Memory and ranks of every client; narrow enough for 80 columns.

    `used` is what the cost model says, `measured` what a trial step took; `valid` is said of what
    was measured, where it was. Where a model is split, `blocks` says how many run on the client.
    """
    title = "memory for training in MB; ranks by layer, or least/mean/most"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    table.add_column("client", overflow="fold", min_width=6)
    table.add_column("device", overflow="fold", min_width=6)
    split = any(entry.get("point") for entry in budgets.values())
    blocks = ["blocks"] if split else []
    for column in ("budget", "used", "measured", "valid", "ranks", "complexity", *blocks):
        table.add_column(column, justify="right", no_wrap=True)
    for client, entry in budgets.items():
        table.add_row(
            client,
            entry["device"] or "-",
            *(_megabytes(entry[key]) for key in ("budget", "used", "measured")),
            "yes" if entry["valid"] else "no",
            granted_text(entry["ranks"]),
            _figure(entry["complexity"]),
            *([str(entry.get("point") or "all")] if split else []),
        )
    return table


def granted_text(ranks: Sequence[int]) -> str:
    """One rank for all layers, a short list, or least, mean and most."""
    if len(set(ranks)) == 1:
        return str(ranks[0])
    if len(ranks) <= MOST_RANKS:
        return " ".join(map(str, ranks))
    return f"{min(ranks)}/{statistics.fmean(ranks):.1f}/{max(ranks)}"


def _megabytes(count: int | None) -> str:
    if count is None:
        return "-"
    value = count / MB
    return f"{value:.0f}" if value >= 1000 else _figure(value)


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
