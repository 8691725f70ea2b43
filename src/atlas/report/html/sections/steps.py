"""Steps that are estimated (`relation.eta=shrink`): how far clients go toward their neighbours."""

from __future__ import annotations

from atlas.report.html.charts import MOST_ROWS, ROUND, SHARE, Section, lines, table
from atlas.report.html.sections.relations import WHO, client_rounds
from atlas.report.html.sections.scores import task_bands
from atlas.report.read.log import events_of, shrunk
from atlas.report.read.source import RunSource

SHOWN = {
    "keep": ("Deviation to keep, of 1", "keep (c)"),
    "eta": ("Step toward the neighbours' mean", "eta"),
}
COLUMNS = {
    "noise": "noise",
    "difference": "difference",
    "rho": "way a round covers (rho)",
    "keep": "keep (c)",
    "eta": "step (eta)",
}


def steps_section(run: RunSource) -> Section | None:
    """What clients are to keep of their own and the step they take, by task and by client."""
    found = {name: shrunk(run.events, name) for name in SHOWN}
    last = dict((run.summary or {}).get("steps") or {})
    for event in events_of(run.events, "shrunk"):
        last |= event["clients"]
    if not any(last.values()):
        return None
    charts = []
    for name, (title, label) in SHOWN.items():
        series = task_bands(run, found[name])
        charts.append(lines(series, ROUND, {**SHARE, "label": label}, title=title))
    title = "Step of every client"
    charts.append(client_rounds(run, found["eta"], title, label="eta", low=0.0, high=1.0))
    rows = [
        [client, *((last[client] or {}).get(key) for key in COLUMNS)]
        for client in run.clients
        if client in last
    ][:MOST_ROWS]
    columns = {"client": "text", **dict.fromkeys(COLUMNS.values(), "number")}
    return Section(
        "steps",
        WHO,
        "Steps that were estimated",
        "From noise and real differences between clients it is estimated how much of its deviation "
        "from its neighbours each client should keep (c), and from that its step toward them "
        "(eta).",
        "Look for clients that keep much: they differ from their neighbours in more than noise. A "
        "keep of 0 says that the whole difference may be chance.",
        charts=charts if found["eta"] else [],  # of many clients the log has no steps
        tables=[table(columns, rows, title="As last told")],
        note="Noise and difference are variances of the change that clients trained.",
    )
