"""What travelled: bytes, routing, gates, alignment, mixtures, signatures, refusals, newcomers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from atlas.report.html.charts import (
    MOST_ROWS,
    ROUND,
    SHARE,
    Section,
    Spec,
    bars,
    dots,
    heatmap,
    line,
    lines,
    table,
)
from atlas.report.html.sections.scores import SHAPES, task_bands
from atlas.report.read.cohorts import short_names
from atlas.report.read.log import by_client, events_of, read_cohorts
from atlas.report.read.source import RunSource

EXCHANGE = "What travels"


def bytes_section(run: RunSource) -> Section | None:
    """Bytes up and down by round."""
    found = {e["round"]: e for e in events_of(run.events, "round_finished") if "up" in e}
    if not found:
        return None
    rounds = sorted(found)
    series = [
        {"name": name, "colour": slot, "values": [found[n][key] for n in rounds]}
        for name, key, slot in (("sent by clients", "up", 0), ("received by clients", "down", 1))
    ]
    note = _form_words(run)
    if split := (run.summary or {}).get("bytes", {}).get("split"):
        note += f"Split training took {split['up']:,} bytes of what was sent, {split['down']:,} of "
        note += "what was received: activations and gradients."
    return Section(
        "bytes",
        EXCHANGE,
        "Traffic",
        "Bytes that all clients together sent and received in every round, counted as written.",
        "Look for what routing, smaller ranks or a compressed form (wire.form) save.",
        charts=[bars(rounds, series, ROUND, {"label": "bytes", "format": "bytes"})],
        note=note,
    )


FORMS = {
    "bfloat16": "the change since the last reply in two bytes a number",
    "int8": "the change since the last reply in one byte a number",
    "topk": "only the largest entries of the change since the last reply",
}


def _form_words(run: RunSource) -> str:
    """In which form replies came, where not all came as they are held."""
    forms = [event.get("form") for event in events_of(run.events, "fitted")]
    told = [
        f"{forms.count(form)} of {len(forms)} replies were sent as {form}, {words}. "
        for form, words in FORMS.items()
        if form in forms
    ]
    return "".join(told)


def routing_section(run: RunSource) -> Section | None:
    """Which modules travelled for whom in which round."""
    masks: dict[str, dict[int, list[bool]]] = {}
    names: dict[str, list[str]] = {}
    for event in events_of(run.events, "routed"):
        for client, mask in event["open"].items():
            masks.setdefault(client, {})[event["round"]] = mask
            names[client] = [str(module) for module in event.get("modules") or range(len(mask))]
    clients = [client for client in run.clients if client in masks][:MOST_ROWS]
    if not clients:
        return None
    shared = names[clients[0]]
    same = [client for client in clients if names[client] == shared]
    rounds = sorted({number for client in same for number in masks[client]})
    frames = []
    for client in same:
        share = statistics.fmean(
            float(is_open) for mask in masks[client].values() for is_open in mask
        )
        rows = [
            [int(masks[client][n][m]) if n in masks[client] else None for n in rounds]
            for m in range(len(shared))
        ]
        frames.append({"name": f"{client}: {100 * share:.0f} % open", "values": rows})
    chart = heatmap(
        list(short_names(shared)),
        rounds,
        frames,
        palette="mask",
        slider="client",
        xlabel="round",
        numeric=True,
    )
    shares = {
        client: {n: statistics.fmean(map(float, mask)) for n, mask in own.items()}
        for client, own in masks.items()
    }
    series = task_bands(run, shares)
    return Section(
        "routing",
        EXCHANGE,
        "Which modules travelled",
        "Under a bandwidth budget only some modules of an adapter travel: blue ones did, in that "
        "round, for the client that the slider names.",
        "Look for rows that stay blue: those modules count most. Masks that flicker say that no "
        "module stands out.",
        charts=[chart, lines(series, ROUND, {**SHARE, "label": "share of modules open"})],
    )


def beta_section(run: RunSource) -> Section | None:
    """What stands beside an adapter counts, by task and by module."""
    told = [e for e in events_of(run.events, "fitted") if e.get("beta")]
    if not told:
        return None
    means: dict[str, dict[int, float]] = {}
    modules: dict[int, list[list[float]]] = {}
    for event in told:
        mean = statistics.fmean(event["beta"])
        means.setdefault(event["client"], {})[event["round"]] = mean
        modules.setdefault(event["round"], []).append(event["beta"])
    series = task_bands(run, means)
    least = min(len(row) for rows in modules.values() for row in rows)
    rounds = sorted(modules)
    cells = [[statistics.fmean(r[m] for r in modules[n]) for n in rounds] for m in range(least)]
    cohorts = list(read_cohorts(run.events).values())
    names = short_names(cohorts[0]["modules"][:least]) if len(cohorts) == 1 else range(least)
    return Section(
        "beta",
        EXCHANGE,
        "How much the others count (beta)",
        "Each client weighs what it gets from others (beta) against its own adapter (1 - beta), "
        "layer by layer, and learns that weight.",
        "Look for values near 0: the others' part is ignored; near 1: the own part is.",
        charts=[
            lines(series, ROUND, {**SHARE, "label": "beta, mean over layers"}),
            heatmap(
                [str(name) for name in names],
                rounds,
                [{"name": "beta", "values": cells}],
                title="Mean of all clients, by module",
                low=0.0,
                high=1.0,
                format="share",
                label="beta",
                xlabel="round",
                numeric=True,
            ),
        ],
    )


def alignment_section(run: RunSource) -> Section | None:
    """Residuals of alignment between backbones, before and after."""
    event = next(iter(list(events_of(run.events, "aligned"))[-1:]), None)
    if event is None:
        return None
    parts = event.get("modules") or []
    names = [f"{p['backbone']} {p['module']} {p['side']}" for p in parts][:MOST_ROWS]

    def pair(before: str, after: str) -> list[Spec]:
        return [
            {"name": "before", "colour": "alone", "hollow": True, "values": _take(parts, before)},
            {"name": "after", "colour": 0, "values": _take(parts, after)},
        ]

    charts = [
        dots(names, pair("before", "after"), {"label": "residual"}, title="Residual", link=LINK),
        dots(
            names,
            pair("angle_before", "angle_after"),
            {"label": "degrees"},
            title="Angle between subspaces",
            link=LINK,
        ),
    ]
    columns = {"backbone": "text", "residual before": "number", "after": "number"}
    columns |= {"angle before": "number", "angle after": "number"}
    keys = ("before", "after", "angle_before", "angle_after")
    rows = [
        [name, *(own.get(key) for key in keys)] for name, own in event.get("backbones", {}).items()
    ]
    return Section(
        "alignment",
        EXCHANGE,
        "Alignment of backbones",
        f"How far apart the spaces of different backbones are before and after they were aligned "
        f"({event.get('method', 'unknown')}, onto {event.get('reference', 'unknown')}).",
        "Look for filled marks well left of hollow ones: without that, cores of different "
        "backbones do not mean the same.",
        charts=charts if names else [],
        tables=[table(columns, rows)],
    )


LINK = ["after", "before"]


def _take(parts: list[Any], key: str) -> list[Any]:
    return [part.get(key) for part in parts][:MOST_ROWS]


MIXED = {
    "error": ("Distance of mixtures from the exact ones", ("mean", "worst")),
    "distance": ("Distance between clients of one cluster", ("trained", "mixed")),
    "gauge": ("Distance of factors to a mixture's reference", ("before", "after")),
    "feedback": ("Energy cut off and remembered, share of the mixture", ("residual", "lost")),
}


def mixtures_section(run: RunSource) -> Section | None:
    """Errors, distances and gauges of mixtures over rounds, mean over cohorts."""
    charts = []
    for key, (title, names) in MIXED.items():
        series = []
        for slot, name in enumerate(names):
            points: dict[int, list[float]] = {}
            for event in events_of(run.events, "mixed"):
                value = (event.get(key) or {}).get(name)
                value = value.get("mean") if isinstance(value, Mapping) else value
                if value is not None:
                    points.setdefault(event["round"], []).append(value)
            if points:
                means = {n: statistics.fmean(own) for n, own in points.items()}
                series.append(line(means, name, slot, shape=SHAPES[slot]))
        if series:
            charts.append(lines(series, ROUND, {"zero": True}, title=title, height=200))
    if not charts:
        return None
    return Section(
        "mixtures",
        EXCHANGE,
        "How good the mixtures are",
        "What cutting a mixture to each client's rank loses, how much of that the server remembers "
        "for later (mixing.feedback; lost: what it does not), how far mixing brings clients of a "
        "cluster together, and what turning factors onto a common basis does.",
        "Look for errors well below 1, and for mixed distances below trained ones.",
        charts=charts,
    )


def signatures_section(run: RunSource) -> Section | None:
    """Length of every signature by round, and the noise on it."""
    norms = by_client(run.events, "signed", "norm")
    if not norms:
        return None
    series = task_bands(run, norms)
    told = list(events_of(run.events, "signed"))[-1]
    levels = []
    if told.get("clip") is not None:
        levels = [{"value": told["clip"], "name": "clipped here", "colour": "majority"}]
    return Section(
        "signatures",
        EXCHANGE,
        "Signatures",
        f"The length of what clients send so that they can be compared, before clipping; noise of "
        f"standard deviation {told.get('noise')} is on each number.",
        "Look for lengths far above the clip: those signatures keep their direction alone.",
        charts=[lines(series, ROUND, {"label": "length", "zero": True}, levels=levels)],
    )


def trouble_section(run: RunSource) -> Section | None:
    """Refused replies and failed requests."""
    rows = [
        [e.get("round"), str(e.get("client", "")), KINDS[e["event"]], str(e.get("reason", ""))]
        for e in events_of(run.events, "refused", "failure")
    ]
    if not rows:
        return None
    columns = {"round": "integer", "client": "text", "what": "text", "why": "text"}
    return Section(
        "trouble",
        EXCHANGE,
        "Replies that did not count",
        f"{len(rows)} replies were refused or never came; the rounds went on without them.",
        "Look for a client that returns often: its data or device needs a look.",
        tables=[table(columns, rows)],
    )


KINDS = {"refused": "refused", "failure": "failed"}


def data_section(run: RunSource) -> Section | None:
    """What became of every client's own file."""
    told: Any = (run.summary or {}).get("data") or {}
    for event in events_of(run.events, "data"):
        told = told or event["clients"]
    if not told:
        return None
    columns = {"client": "text", "rows": "integer", "used": "integer", "duplicates": "integer"}
    columns |= {"conflicts": "integer", "truncated": "integer", "warnings": "text"}
    rows = []
    for client, facts in sorted(told.items()):
        used = facts.get("used")
        total = sum(used.values()) if isinstance(used, dict) else used
        counts = [facts.get(key) for key in ("duplicates", "conflicts", "truncated")]
        rows.append([client, facts.get("rows"), total, *counts, "; ".join(facts["warnings"])])
    return Section(
        "data",
        EXCHANGE,
        "The clients' own files",
        "Rows that each file has, how many are used, and why others are not.",
        "Look for files of which little is used.",
        tables=[table(columns, rows)],
    )
