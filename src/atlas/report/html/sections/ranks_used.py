"""Whether clients use the ranks they have: energy by bands of ranks, and ranks that stand empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atlas.report.html.charts import MOST_ROWS, ROUND, Section, Spec, heatmap, line, lines, table
from atlas.report.html.sections.capacity import CAPACITY
from atlas.report.html.sections.scores import SHAPES
from atlas.report.read.energy import energy_groups, read_energy
from atlas.report.read.log import events_of
from atlas.report.read.source import RunSource
from atlas.report.words.english import counted

MOST_GROUPS = 4
"""Largest ranks that have a chart, from the top."""
LEAST = 1e-6
"""Shares below this are drawn at it: the scale is logarithmic."""
STAGES = {"trained": "as trained", "mixed": "once mixed"}


def energy_section(run: RunSource) -> Section | None:
    """Energy by band of ranks over rounds and by client, and who uses little of its ranks."""
    ranks = _ranks(run)
    charts: list[Spec] = []
    told = read_energy(run.events)
    for cohort, mixed in told.items():
        start = f"{cohort}: " if len(told) > 1 else ""
        for group in energy_groups(mixed, ranks)[:MOST_GROUPS]:
            series = [
                line(_drawn(rounds), f"beyond rank {edge}", slot, shape=SHAPES[slot % 6])
                for slot, (edge, rounds) in enumerate(group.beyond.items())
            ]
            title = f"{start}Rank {group.rank}, {counted(len(group.clients), 'client')}"
            axis = {"label": "share of energy", "log": True, "max": 1}
            charts.append(lines(series, ROUND, axis, title=title, height=220))
        charts.append(_bands(run, mixed, start))
    unused = _unused(run)
    if not charts:
        return _nothing_but(unused) if unused else None
    return Section(
        "energy",
        CAPACITY,
        "Energy by rank",
        "How much of what clients learned (squared singular values of their changes) lies in which "
        "of their ranks: over the rounds the share beyond each smaller rank, as trained, and by "
        "client the last round before and after mixing.",
        "Look for lines that fall: mixing with clients of smaller ranks empties the upper ranks "
        "of the others, and mixing.feedback=1 keeps what it cuts off.",
        charts=charts,
        tables=unused,
    )


def _nothing_but(unused: list[Spec]) -> Section:
    """Where all ranks are equal there are no bands to draw."""
    return Section(
        "energy",
        CAPACITY,
        "Energy by rank",
        "Who holds next to nothing of what it learned (squared singular values of its change) in "
        "most of its ranks.",
        "Smaller ranks would do here.",
        tables=unused,
    )


def _ranks(run: RunSource) -> dict[str, Sequence[int]]:
    """As granted, or as the summary has them: a run under way has none yet."""
    granted = {str(e["client"]): e["ranks"] for e in events_of(run.events, "granted")}
    return {**granted, **(run.summary or {}).get("ranks", {})}


def _drawn(rounds: Mapping[int, float]) -> dict[int, float | None]:
    return {number: max(share, LEAST) for number, share in rounds.items()}


def _bands(run: RunSource, mixed: Sequence[Mapping[str, Any]], start: str) -> Spec:
    """Clients by bands of ranks in the last round, before and after mixing."""
    event = mixed[-1]
    edges = event["energy"]["bands"]
    bands = [f"{low + 1} to {high}" for low, high in zip([0, *edges], edges, strict=False)]
    places = {client: place for place, client in enumerate(event["clients"])}
    clients = [client for client in run.clients if client in places][:MOST_ROWS]
    frames = [
        {
            "name": words,
            "values": [
                [100 * share for share in event["energy"][stage][places[c]]] for c in clients
            ],
        }
        for stage, words in STAGES.items()
    ]
    return heatmap(
        clients,
        bands,
        frames,
        title=f"{start}Round {event['round']}, by client",
        slider="when",
        rowColours=[run.slot(client) for client in clients],
        format="score",
        label="% of the energy",
        xlabel="ranks",
        low=0.0,
        high=100.0,
    )


def _unused(run: RunSource) -> list[Spec]:
    found: Mapping[str, Mapping[str, Any]] = (run.summary or {}).get("unused") or {}
    if not found:
        return []
    columns = {"client": "text", "largest rank": "integer", "in use up to": "integer"}
    columns |= {"share of energy beyond": "number"}
    rows = [
        [client, *(found[client].get(key) for key in ("rank", "used", "beyond"))]
        for client in run.clients
        if client in found
    ]
    return [table(columns, rows, title="Clients that use less than half of their ranks")]
