"""A study: its arms with their seeds and tests, task by task, sweeps, clients, costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from atlas.report.html.charts import (
    MOST_ROWS,
    SCORE,
    Section,
    Spec,
    dots,
    heatmap,
    level,
    lines,
    percent,
    table,
    tile,
)
from atlas.report.html.sections.scores import RESULTS, SHAPES
from atlas.report.read.studies import (
    Row,
    columns_of,
    distance_of,
    is_relation,
    rows_by_arm,
    swept_keys,
)
from atlas.report.tables.runs import task_text
from atlas.report.words.english import counted

SWEEPS = "Sweeps"
SEEDS = "Bars are one standard deviation over seeds, small dots single seeds."
ONE_SEED = "There is one seed, so there are no error bars: a difference here may be chance."
Result = Mapping[str, Any]
ValueOf = Callable[[Row], float | None]


def headline(result: Result) -> tuple[str, list[Spec]]:
    """Which arm is best, and whether that can be told from chance."""
    means = _means(result)
    best = max(means, key=lambda arm: means[arm])
    first = next(iter(means))
    seeds = max(len(rows) for rows in rows_by_arm(result["rows"]).values())
    text = f"Of {counted(len(means), 'arm')} with {counted(seeds, 'seed')}, {best} scores best: "
    text += f"{100 * means[best]:.1f} %"
    test = next((t for t in result["tests"] if best in (t["first"], t["second"])), None)
    other = first if best != first else (test or {}).get("second")
    if test is not None and other:
        text += f", {abs(100 * (means[best] - means[other])):.1f} points from {other}"
        p = test.get("t_test_p")
        if p is None:
            text += "; with so few seeds there is no test of that"
        else:
            sure = "unlikely to be chance" if p <= 0.05 else "which may be chance"
            text += f" ({sure}: p = {p:.3g}, paired over seeds)"
    text += "."
    tiles = [tile("best arm", 100 * means[best], "percent", best)]
    for key, name in (("majority", _guess(result)), ("ceiling", "ceiling")):
        if result.get(key) is not None:
            tiles.append(tile(name, 100 * result[key], "percent", LEVELS.get(name, "")))
    if result.get("alone"):
        note = "each client by itself"
        tiles.append(tile("alone", 100 * result["alone"]["mean"], "percent", note))
    tiles.append(tile("runs", len(result["rows"]), "integer", "compared"))
    return text, tiles


LEVELS = {
    "majority": "always the commonest answer",
    "chance": "a guess",
    "ceiling": "one adapter per task on all data",
}


def _guess(result: Result) -> str:
    return "chance" if result.get("kind") == "memory" else "majority"


def _means(result: Result) -> dict[str, float]:
    arms = rows_by_arm(result["rows"])
    return {arm: statistics.fmean(row["mean"] for row in rows) for arm, rows in arms.items()}


def _marks(rows_of: Mapping[str, Sequence[float]]) -> list[Spec]:
    """A dot for each arm at its mean, its seeds beside it, and a bar where there are several."""
    means, low, high, many = [], [], [], []
    for values in rows_of.values():
        mean = statistics.fmean(values) if values else None
        error = statistics.stdev(values) if len(values) > 1 else None
        means.append(mean)
        low.append(None if error is None or mean is None else mean - error)
        high.append(None if error is None or mean is None else mean + error)
        many.append(list(values) if len(values) > 1 else [])
    return [{"name": "mean", "colour": 0, "values": means, "low": low, "high": high, "many": many}]


def _levels(found: Mapping[str, Any], result: Result, alone: float | None) -> list[Spec]:
    known = (
        (_guess(result), found.get("majority"), "majority"),
        ("alone", alone, "alone"),
        ("ceiling", found.get("ceiling"), "ceiling"),
    )
    return [level(100 * own, name, tone) for name, own, tone in known if own is not None]


def _seeds_note(result: Result) -> str:
    most = max(len(rows) for rows in rows_by_arm(result["rows"]).values())
    return SEEDS if most > 1 else ONE_SEED


def arms_section(result: Result) -> Section:
    """All arms with their seeds and tests."""
    arms = rows_by_arm(result["rows"])
    chart = dots(
        list(arms),
        _marks({arm: [100 * row["mean"] for row in rows] for arm, rows in arms.items()}),
        {**SCORE, "label": "mean test score, %"},
        levels=_levels(result, result, (result.get("alone") or {}).get("mean")),
    )
    tests = [{}, *result["tests"]]
    columns = {"arm": "text", "seeds": "integer", "mean": "score", "spread": "score"}
    columns |= {"worst": "score", "worst gain": "signed", "difference": "signed"}
    columns |= {"p (t)": "number", "p (Wilcoxon)": "number", "Cohen's d": "number"}
    rows = []
    for (arm, own), test in zip(arms.items(), tests, strict=True):
        scores = [100 * row["mean"] for row in own]
        gain = result.get("clients", {}).get(arm, {}).get("worst_gain")
        spread = statistics.stdev(scores) if len(scores) > 1 else None
        worst = min(100 * row["worst"] for row in own)
        keys = ("t_test_p", "wilcoxon_p", "cohens_d")
        told = [percent(test.get("difference")), *(test.get(key) for key in keys)]
        mean = statistics.fmean(scores)
        rows.append([arm, len(own), mean, spread, worst, percent(gain), *told])
    return Section(
        "arms",
        RESULTS,
        "The arms",
        "Mean test score of every arm. The axis does not start at zero: distances are to be "
        f"compared, not heights. {_seeds_note(result)}",
        "Look for arms whose bars do not touch, and for p below 0.05 in the table (paired over "
        "seeds, against the first arm).",
        charts=[chart],
        tables=[table(columns, rows, title="Every arm against the first")],
    )


def tasks_section(result: Result) -> Section | None:
    """The same arms task by task."""
    charts, arms = [], rows_by_arm(result["rows"])
    if len(result["tasks"]) < 2:
        return None
    for task, found in result["tasks"].items():
        own = {
            arm: [100 * row["tasks"][task] for row in rows if task in row["tasks"]]
            for arm, rows in arms.items()
        }
        title = task_text(task, found["metric"]) + (", at chance" if found["at_chance"] else "")
        levels = _levels(found, result, found.get("alone"))
        charts.append(
            dots(list(own), _marks(own), {**SCORE, "label": ""}, title=title, levels=levels)
        )
    return Section(
        "tasks",
        RESULTS,
        "Task by task",
        f"The same arms in each task's own metric. {_seeds_note(result)}",
        "Look for tasks at chance, which say nothing about the arms, and for arms that help one "
        "task at another's cost.",
        charts=charts,
    )


def sweep_sections(result: Result) -> list[Section]:
    """One section for every compared key whose values are numbers."""
    return [_sweep(result, key) for key in swept_keys(result["rows"])]


def _sweep(result: Result, key: str) -> Section:
    rows: Sequence[Row] = result["rows"]
    charts = [_over(rows, key, "All tasks", lambda row: percent(row["mean"]), result)]
    for task, found in result["tasks"].items():
        if len(result["tasks"]) > 1:
            title = task_text(task, found["metric"])
            charts.append(_over(rows, key, title, _score_in(task), found))
    if is_relation(key):
        for end in ("first", "last"):
            title = f"Distance within clusters once mixed, {end} round"
            charts.append(_over(rows, key, title, partial(distance_of, end=end), None))
    kept = [spec for spec in charts if spec["series"]]
    return Section(
        f"sweep-{_slug(key)}",
        SWEEPS,
        f"Over {key}",
        f"Scores for every value of {key}, as means over seeds with the range of seeds as a band. "
        + ("" if _seeds_note(result) == SEEDS else ONE_SEED),
        "Look for a plateau: a value in its middle is a safe choice. A single peak of one seed is "
        "none.",
        charts=kept,
    )


def _score_in(task: str) -> ValueOf:
    return lambda row: percent(row["tasks"].get(task))


def _slug(key: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in key)


def _over(
    rows: Sequence[Row], key: str, title: str, value_of: ValueOf, found: Result | None
) -> Spec:
    named: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        value = value_of(row)
        if value is not None:
            others = {k: v for k, v in columns_of(row).items() if k != key}
            name = ", ".join(f"{k}={v}" for k, v in others.items()) or "mean over seeds"
            named.setdefault(name, {}).setdefault(row["keys"][key], []).append(value)
    series = []
    for slot, (name, points) in enumerate(named.items()):
        xs = sorted(points)
        spec: Spec = {"name": name, "colour": slot, "x": xs, "shape": SHAPES[slot % 6]}
        spec["y"] = [statistics.fmean(points[x]) for x in xs]
        if any(len(points[x]) > 1 for x in xs):
            spec |= {"low": [min(points[x]) for x in xs], "high": [max(points[x]) for x in xs]}
        series.append(spec)
    xs = sorted({x for points in named.values() for x in points})
    wide = bool(xs) and xs[0] > 0 and xs[-1] > 20 * xs[0]
    axis = {"label": key, "log": wide, "ticks": xs if len(xs) <= 8 else None}
    spec = lines(series, axis, dict(SCORE) if found is not None else {"zero": True}, title=title)
    if found is not None and found.get("majority") is not None:
        spec["levels"] = [level(100 * found["majority"], "guess", "majority", far=True)]
    return spec


def clients_section(result: Result) -> Section | None:
    """Gain of every client under every arm."""
    arms = {arm: own["gain"] for arm, own in result.get("clients", {}).items() if own["gain"]}
    if not arms:
        return None
    clients = sorted({client for gains in arms.values() for client in gains})[:MOST_ROWS]
    values = [[percent(gains.get(client)) for gains in arms.values()] for client in clients]
    known = [v for row in values for v in row if v is not None]
    reach = max((abs(v) for v in known), default=1.0)
    chart = heatmap(
        clients,
        list(arms),
        [{"name": "gain", "values": values}],
        format="signed",
        low=-reach,
        high=reach,
        label="points gained over training alone",
    )
    columns = {"client": "text", **dict.fromkeys(arms, "signed")}
    rows = [[client, *row] for client, row in zip(clients, values, strict=True)]
    return Section(
        "clients",
        RESULTS,
        "Whom it helps",
        "What each client gains over training alone under every arm, in points, mean over seeds.",
        "Look for dark cells: those clients would do better by themselves.",
        charts=[chart],
        tables=[table(columns, rows)],
    )


def costs_section(result: Result) -> Section | None:
    """Bytes, seconds and errors of mixtures by arm."""
    arms = rows_by_arm(result["rows"])
    columns = {"arm": "text", "sent": "bytes", "received": "bytes", "seconds": "seconds"}
    columns |= {"mix error": "number", "distance, first round": "number", "last": "number"}
    rows = []
    for arm, own in arms.items():
        told = [row for row in own if row.get("bytes")]
        both = [statistics.fmean(r["bytes"][w] for r in told) if told else None for w in WAYS]
        errors = [row["error"] for row in own if row.get("error") is not None]
        far = [[d for r in own if (d := distance_of(r, end)) is not None] for end in ENDS]
        seconds = statistics.fmean(row["seconds"] for row in own)
        means = [statistics.fmean(values) if values else None for values in (errors, *far)]
        rows.append([arm, *both, seconds, *means])
    return Section(
        "costs",
        RESULTS,
        "What it costs",
        "Traffic and time of a run of each arm, and how far its mixtures are from the exact ones.",
        "Look for arms that score alike at a fraction of the traffic.",
        tables=[table(columns, rows)],
    )


WAYS = ("up", "down")
ENDS = ("first", "last")
