"""What devices allow: ranks by client and layer, rank against memory, budgets, importance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas.config.plan import MB
from atlas.report.html.charts import (
    MOST_ROWS,
    Section,
    Spec,
    dots,
    heatmap,
    scatter,
    table,
)
from atlas.report.html.sections.scores import SHAPES
from atlas.report.read.cohorts import GrantedCohort, label_borders, read_granted, short_names
from atlas.report.read.log import events_of, read_cohorts
from atlas.report.read.source import RunSource

CAPACITY = "Ranks and memory"


def ranks_section(run: RunSource) -> Section | None:
    """Ranks of every client and layer, granted or fixed."""
    granted = read_granted(run.events)
    charts = [_cells(own, own.ranks.tolist(), "rank", "integer", log=True) for own in granted]
    if not charts:
        charts = _fixed(run)
    if not charts:
        return None
    fixed = "" if granted else " They were fixed by the settings."
    return Section(
        "ranks",
        CAPACITY,
        "Rank of every layer",
        f"How many directions each client may learn in each adapted layer.{fixed}",
        "Look for bright columns (layers in which the gradient says that learning counts) and dark "
        "rows (small devices).",
        charts=charts,
    )


def _fixed(run: RunSource) -> list[Spec]:
    """Ranks as the summary has them, where they differ at all."""
    ranks: Mapping[str, list[int]] = (run.summary or {}).get("ranks", {})
    if len({rank for own in ranks.values() for rank in own}) < 2:
        return []
    charts = []
    for facts in read_cohorts(run.events).values():
        clients = [c for c in run.clients if c in ranks and c in facts["clients"]][:MOST_ROWS]
        names = short_names(facts["modules"])
        rows = [list(ranks[client]) for client in clients]
        if rows and all(len(row) == len(names) for row in rows):
            frame = [{"name": "ranks", "values": rows}]
            inks = [run.slot(client) for client in clients]
            charts.append(
                heatmap(clients, names, frame, rowColours=inks, format="integer", label="rank")
            )
    return charts


def _cells(
    granted: GrantedCohort, values: list[Any], label: str, how: str, *, log: bool = False
) -> Spec:
    count = min(MOST_ROWS, len(granted.clients))
    return heatmap(
        granted.clients[:count],
        granted.modules,
        [{"name": label, "values": values[:count]}],
        rowColours=_slots(granted)[:count],
        borders=[place for place in label_borders(granted.labels) if place < count],
        format=how,
        label=label,
        log=log,
    )


def _slots(granted: GrantedCohort) -> list[int | str]:
    return ["soft" if own is None else granted.slots[own] for own in granted.labels]


def memory_section(run: RunSource) -> Section | None:
    """Mean rank against the memory that a device has to give."""
    charts = []
    for granted in read_granted(run.events):
        devices = sorted(set(granted.devices))
        shape = {device: SHAPES[n % len(SHAPES)] for n, device in enumerate(devices)}
        points = [
            {
                "x": float(left),
                "y": float(rank),
                "name": client,
                "colour": slot,
                "shape": shape[device],
                "group": granted.clusters.get(label, "in no cluster") if label is not None else "",
                "lines": [
                    ["device", device or "as set", "text"],
                    ["budget", entry["budget"], "bytes"],
                    ["used", entry["used"], "bytes"],
                ],
            }
            for (left, rank), client, device, slot, label, entry in zip(
                granted.points,
                granted.clients,
                granted.devices,
                _slots(granted),
                granted.labels,
                granted.entries,
                strict=True,
            )
        ]
        wide = granted.points[:, 0].max() > 6 * max(granted.points[:, 0].min(), 1e-9)
        spec = scatter(
            points,
            {"label": "MB left above weights and activations", "log": bool(wide)},
            {"label": "mean rank", "zero": True},
        )
        if len(devices) > 1:
            spec["shapes"] = [{"name": d or "as set", "shape": shape[d]} for d in devices]
        charts.append(spec)
    if not charts:
        return None
    return Section(
        "rank-memory",
        CAPACITY,
        "Rank against device memory",
        "The mean rank of each client against what its device has left for adapters, once the "
        "frozen weights and the activations of its texts are in.",
        "Look for points that rise to the right: more memory buys more rank. Clients below the "
        "trend need less than they could have.",
        charts=charts,
    )


def budgets_section(run: RunSource) -> Section | None:
    """Budget, planned use and measured use of every client."""
    latest = {e["client"]: e for e in events_of(run.events, "granted")}
    clients = [client for client in run.clients if client in latest][:MOST_ROWS]
    if not clients:
        return None

    def values(key: str) -> list[float | None]:
        found = [latest[client].get(key) for client in clients]
        return [None if value is None else value / MB for value in found]

    series: list[Spec] = [
        {"name": "budget", "colour": "majority", "shape": "bar", "values": values("budget")},
        {"name": "planned", "colour": 0, "values": values("used")},
        {"name": "measured", "colour": 1, "shape": "diamond", "values": values("measured")},
    ]
    inks = [run.slot(client) for client in clients]
    chart = dots(clients, series, {"label": "MB", "format": "integer"}, rowColours=inks)
    columns = {"client": "text", "device": "text", "budget": "bytes", "planned": "bytes"}
    columns |= {"measured": "bytes", "weights": "bytes", "activations": "bytes"}
    columns |= {"lowered": "integer", "fits": "text"}
    keys = ("device", "budget", "used", "measured", "weights", "activations", "lowered")
    rows = []
    for client in clients:
        fits = "yes" if latest[client].get("valid") else "no"
        rows.append([client, *(latest[client].get(key) for key in keys), fits])
    return Section(
        "budgets",
        CAPACITY,
        "Memory budgets",
        "What each device allows, what the ranks were planned to take, and what a trial step took.",
        "Look for a measured mark right of its budget: that client would run out of memory.",
        charts=[chart],
        tables=[table(columns, rows)],
        note="Lowered: how often a trial step took more than the budget, so that smaller ranks "
        "were granted. A client fits if what was measured, or else planned, is within its budget.",
    )


def importance_section(run: RunSource) -> Section | None:
    """What each layer counts for each client."""
    charts = []
    for granted in read_granted(run.events):
        values = [entry.get("importance") for entry in granted.entries]
        if all(values):
            spec = _cells(granted, values, "importance", "share")
            charts.append(spec | {"title": "What each layer counts"})
    if not charts:
        return None
    return Section(
        "importance",
        CAPACITY,
        "Why these ranks",
        "The share of a client's gradient in each layer, by which ranks were dealt out.",
        "Look for the same bright columns as in the ranks: memory went where it counts.",
        charts=charts,
    )
