"""Who learns from whom: W over rounds, affinity, fingerprints, clusters, what was taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atlas.report.html.charts import (
    MOST_ROWS,
    ROUND,
    SCORE,
    Section,
    Spec,
    band,
    heatmap,
    line,
    lines,
    scatter,
    table,
)
from atlas.report.html.sections.scores import ROUNDS, SHAPES
from atlas.report.read.clusters import origin_of, tree_text
from atlas.report.read.cohorts import PlannedCohort, read_planned, read_signed
from atlas.report.read.log import Rounds, by_client, events_of, grouped, validated
from atlas.report.read.source import RunSource

WHO = "Who learns from whom"
SWAMPED = 4.0
"""Times by which a diagonal may exceed all pairs and still share their scale."""
MEASURES = {
    "silhouette": "silhouette (higher is better)",
    "davies_bouldin": "Davies-Bouldin (lower is better)",
    "calinski_harabasz": "Calinski-Harabasz (higher is better)",
    "score": "weighted score (higher is better)",
    "stability": "stability (higher is better)",
    "share": "reproduced share (to be above needed)",
    "gain": "gain of training apart (to be above needed)",
}


def cohorts_of(run: RunSource) -> list[PlannedCohort]:
    """Cohorts in the order of their pictures: by cluster, or by task where none were planned."""
    planned = {own.cohort: own for own in read_planned(run.events)}
    planned |= {o.cohort: o for o in read_signed(run.events) if o.cohort not in planned}
    latest = {e["cohort"]: e for e in events_of(run.events, "mixed") if "weights" in e}
    for cohort, event in latest.items():
        if cohort not in planned:
            planned[cohort] = _by_task(run, event)
    return [planned[cohort] for cohort in sorted(planned)]


def _by_task(run: RunSource, event: Mapping[str, Any]) -> PlannedCohort:
    """Of a strategy that neither plans nor signs: tasks stand for clusters."""
    tasks = [run.tasks.get(client, "") for client in event["clients"]]
    labels = {"labels": [run.slots.get(task, 0) for task in tasks]}
    named = {"cohort": event["cohort"], "clients": event["clients"]}
    return PlannedCohort.read({**named, "tasks": tasks, "clusters": labels}, [*run.slots])


def mixing_section(run: RunSource) -> Section | None:
    """W of every round, with a slider."""
    charts = []
    cohorts = cohorts_of(run)
    for planned in cohorts:
        mixed = {
            e["round"]: e
            for e in events_of(run.events, "mixed")
            if e["cohort"] == planned.cohort and "weights" in e
        }
        frames = []
        for number in sorted(mixed):
            weights = np.array(mixed[number]["weights"], dtype=np.float64)
            weights = weights.mean(0) if weights.ndim == 3 else weights
            values = planned.arrange(weights.tolist(), mixed[number]["clients"])
            frames.append({"name": f"round {number}", "values": values.tolist()})
        if frames:
            title = planned.cohort if len(cohorts) > 1 else ""
            charts.append(_square(planned, frames, title, "weight", zero=True))
    if not charts:
        return None
    return Section(
        "mixing",
        WHO,
        "Who learned from whom",
        "The effective matrix W of every round: each row is a client, and its cells say how much "
        "of each other client's adapter went into its own.",
        "Look for blocks along the diagonal: clients that share a task should learn from each "
        "other, and from nobody else. A row with one cell of 1 took nothing. Move the slider to "
        "see rounds before the last.",
        charts=charts,
        note="Up to 64 clients are recorded; where layers mix apart, their mean is shown.",
    )


def affinity_section(run: RunSource) -> Section | None:
    """Raw affinity, and neighbours with each row normalised."""
    charts = []
    plans = read_planned(run.events)
    words = {"affinity": "Raw affinity", "neighbours": "Neighbours, each row adds up to 1"}
    for planned in plans:
        for key, title in words.items():
            values = planned.matrix(key)
            if values is not None:
                named = f"{planned.cohort}: {title}" if len(plans) > 1 else title
                frame = [{"name": title, "values": values.tolist()}]
                charts.append(_square(planned, frame, named, key, zero=key == "neighbours"))
    if not charts:
        return None
    return Section(
        "affinity",
        WHO,
        "How alike clients are",
        "The similarity of the clients' fingerprints, and what is left of it once each client "
        "keeps its nearest neighbours.",
        "Look for bright squares between the white lines, which separate clusters; a bright cell "
        "outside a square is a pair that the clusters keep apart.",
        charts=charts,
    )


def _square(
    planned: PlannedCohort, frames: Sequence[Spec], title: str, label: str, *, zero: bool
) -> Spec:
    """Clients by clients; pairs set the scale where a large diagonal would leave them all alike."""
    inks = [planned.slots[own] for own in planned.labels]
    spec = heatmap(
        planned.clients,
        planned.clients,
        frames,
        title=title,
        square=True,
        zero=zero,
        borders=planned.borders(),
        rowColours=inks,
        columnColours=inks,
        format="share",
        label=label,
        xlabel="learns from" if label != "affinity" else "",
    )
    values = np.array([frame["values"] for frame in frames], dtype=np.float64)
    pairs = values[:, ~np.eye(len(planned.clients), dtype=bool)]
    highest = float(np.nanmax(pairs, initial=0.0))
    if 0.0 < highest < spec["high"] / SWAMPED:
        spec |= {"high": highest, "beyond": True}
    return spec


def fingerprints_section(run: RunSource) -> Section | None:
    """Fingerprints in the plane of their first two components."""
    charts, kept = [], []
    plans = read_planned(run.events)
    for planned in plans:
        tasks = sorted(set(planned.tasks))
        shape = {task: SHAPES[place % len(SHAPES)] for place, task in enumerate(tasks)}
        names = planned.names() if planned.clusters is not None else {}
        points = [
            {
                "x": float(x),
                "y": float(y),
                "name": client,
                "colour": planned.slots[label],
                "shape": shape[task],
                "group": f"cluster {names[label]}" if names else task,
                "lines": [["task", task, "text"], ["cluster", label, "integer"]],
            }
            for (x, y), client, task, label in zip(
                planned.points, planned.clients, planned.tasks, planned.labels, strict=True
            )
        ]
        spec = scatter(
            points,
            {"label": "first component"},
            {"label": "second component"},
            equal=True,
            title=planned.cohort if len(plans) > 1 else "",
            names=len(points) <= 40,
        )
        if len(tasks) > 1 and names:
            spec["shapes"] = [{"name": f"task {task}", "shape": shape[task]} for task in tasks]
        charts.append(spec)
        if (explained := planned.event.get("explained")) is not None:
            kept.append(f"{100 * explained:.0f} %")
    if not charts:
        return None
    more = f" The components kept hold {', '.join(kept)} of the variance." if kept else ""
    return Section(
        "fingerprints",
        WHO,
        "Fingerprints",
        "Each client's gradients at the shared start, as a point: colour is the cluster it was "
        "given, shape its task.",
        f"Look for clouds of one shape and one colour; a lone point learns from few.{more}",
        charts=charts,
    )


def clusters_section(run: RunSource) -> Section | None:
    """Measures of every k tried, and how far clusters are tasks."""
    charts, tables, told = [], [], []
    for planned in read_planned(run.events):
        clusters = planned.clusters
        if clusters is None:
            continue
        tried = sorted(clusters.get("tried") or [], key=lambda row: int(row["k"]))
        first = clusters.get("first") or clusters["k"]
        for key, title in MEASURES.items():
            points = {int(row["k"]): row.get(key) for row in tried}
            if len([value for value in points.values() if value is not None]) < 1:
                continue
            series = [line(points, key.replace("_", " "), 0)]
            if key in NEEDED:
                needed = {int(row["k"]): row.get(NEEDED[key]) for row in tried}
                series.append(line(needed, "needed", 7, dash=True))
            marks = [{"x": first, "name": f"k = {first}"}]
            axis = {"label": "k", "integer": True, "format": "integer"}
            charts.append(lines(series, axis, {}, title=title, marks=marks, height=190))
        columns = {"clients of the cluster": "text", "size": "integer"}
        rows = [
            [name, sum(label == own for own in planned.labels)]
            for label, name in planned.names().items()
        ]
        tables.append(table(columns, rows, title=f"Clusters of {planned.cohort}"))
        tables += [_tried(clusters, tried), *_kin(clusters)]
        told.append(_quality(clusters))
    if not tables:
        return None
    return Section(
        "clusters",
        WHO,
        "Clusters and how good they are",
        " ".join(["Every number of clusters that was tried, by each measure.", *told]),
        "Look for the chosen k (dashed) at a peak of the weighted score, and for a gain above what "
        "is needed: members learn more within their cluster than from everybody. A reproduced "
        "share above what chance would need says that the split comes back in other data.",
        charts=charts,
        tables=tables,
    )


def _tried(clusters: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> Spec:
    """Every split that was tried, and why it is in use or not."""
    columns = {"k": "integer", **dict.fromkeys(("silhouette", "score", "stability"), "number")}
    columns |= {"gain": "number", "gain needed": "number", "shared in a part": "share"}
    columns |= {"real": "text", "useful": "text"}
    columns |= {"chosen": "text"}
    origin = origin_of(clusters)
    words = "split again" if origin.parted else "yes"
    rows = []
    for row in tried:
        keys = ("silhouette", "score", "stability", "gain", "gain_needed", "gain_shared")
        judged = (YES_NO.get(row.get(key), "") for key in ("real", "useful"))
        chosen = words if row["k"] == origin.k else ""
        rows.append([row["k"], *(row.get(key) for key in keys), *judged, chosen])
    return table(columns, rows, title="Splits tried")


def _kin(clusters: Mapping[str, Any]) -> list[Spec]:
    """What clusters that are parts of one have in common."""
    pairs = clusters.get("kin") or []
    columns = {"cluster": "integer", "and": "integer", "have in common, of 1": "share"}
    return [table(columns, pairs, title="Parts of one cluster")] if pairs else []


YES_NO: dict[object, str] = {True: "yes", False: "no"}
NEEDED = {"share": "needed", "gain": "gain_needed"}
"""What a measure is to be above."""


def _quality(clusters: Mapping[str, Any]) -> str:
    words = [f"{clusters['k']} clusters by {clusters['method']}"]
    for key, name in (("silhouette", "silhouette"), ("purity", "purity"), ("ari", "adjusted Rand")):
        value = clusters.get(key)
        value = value.get("weighted") if isinstance(value, Mapping) else value
        if value is not None:
            words.append(f"{name} {value:.2f}")
    origin = origin_of(clusters)
    split = ""
    if origin.parted and clusters.get("tree"):
        split = f" They come of {origin.k} that were split again: {tree_text(clusters['tree'])}, "
        split += "parts of one cluster in brackets."
    return f"Chosen: {', '.join(words)}.{split}"


def cluster_scores_section(run: RunSource) -> Section | None:
    """Validation scores by cluster over rounds."""
    found = validated(run.events, "score", 100)
    charts = []
    plans = [planned for planned in read_planned(run.events) if planned.clusters is not None]
    for planned in plans:
        names = planned.names()
        group = {c: names[own] for c, own in zip(planned.clients, planned.labels, strict=True)}
        own = {client: rounds for client, rounds in found.items() if client in group}
        slot = {name: planned.slots[label] for label, name in names.items()}
        series = [
            band(rounds, f"cluster {name}", slot[name], shape=SHAPES[slot[name] % 6])
            for name, rounds in grouped(own, group).items()
        ]
        if series:
            title = planned.cohort if len(plans) > 1 else ""
            axis = {**SCORE, "label": "validation score, %"}
            charts.append(lines(series, ROUND, axis, title=title, wide=True))
    if not charts:
        return None
    return Section(
        "cluster-scores",
        ROUNDS,
        "Scores by cluster",
        "Validation scores over the rounds by cluster: mean and range of its clients.",
        "Look for a cluster that does not rise: its members may not belong together.",
        charts=charts,
    )


def taken_section(run: RunSource) -> Section | None:
    """How much of each offered mixture every client took."""
    found = by_client(run.events, "delivered", "accept")
    if len({value for rounds in found.values() for value in rounds.values()}) < 2:
        return None
    chart = client_rounds(run, found, "Share of the mixture that was taken", low=0.0, high=1.0)
    return Section(
        "taken",
        WHO,
        "What clients took of it",
        "How much of the mixture that it was offered each client took in each round, by its own "
        "validation data.",
        "Look for dark rows: those clients kept to themselves.",
        charts=[chart],
    )


def client_rounds(run: RunSource, found: Rounds, title: str, **more: object) -> Spec:
    """A heatmap of one number by client and round."""
    clients = [client for client in run.clients if client in found][:MOST_ROWS]
    rounds = sorted({number for client in clients for number in found[client]})
    values = [[found[client].get(number) for number in rounds] for client in clients]
    inks = [run.slot(client) for client in clients]
    return heatmap(
        clients,
        rounds,
        [{"name": title, "values": values}],
        title=title,
        rowColours=inks,
        xlabel="round",
        numeric=True,
        format="share",
        **more,
    )
