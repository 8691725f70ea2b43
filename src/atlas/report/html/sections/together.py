"""Several runs side by side: first against each other, then chart beside chart."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from atlas.report.html.charts import (
    MOST_ROWS,
    ROUND,
    SCORE,
    STEP,
    Section,
    Spec,
    band,
    dots,
    line,
    lines,
    percent,
    table,
)
from atlas.report.html.sections.scores import SHAPES
from atlas.report.read.log import Rounds, by_client, grouped, validated
from atlas.report.read.series import by_arm, trained
from atlas.report.read.source import RunSource, first_score

TOGETHER = "Run against run"
Named = Mapping[str, RunSource]


def named_runs(runs: Sequence[RunSource]) -> dict[str, RunSource]:
    """Runs by names that no two share."""
    names: dict[str, RunSource] = {}
    for run in runs:
        name, number = run.name, 2
        while name in names:
            name, number = f"{run.name} ({number})", number + 1
        names[name] = run
    return names


def together(runs: Named) -> list[Section]:
    """What runs of one kind can be held against each other by."""
    kinds = {run.kind for run in runs.values()}
    found: list[Section | None] = [overview(runs)]
    if kinds == {"federation"}:
        found += [clients_section(runs), scores_section(runs), losses_section(runs)]
    elif kinds == {"memory"} or kinds == {"grokking"}:
        found.append(steps_section(runs))
    return [section for section in found if section is not None]


def overview(runs: Named) -> Section:
    """One line per run."""
    columns = {"run": "text", "kind": "text", "what": "text", "state": "text", "rounds": "integer"}
    columns |= {"seed": "integer", "score": "score", "gain": "signed", "traffic": "bytes"}
    columns |= {"time": "seconds"}
    rows = []
    for name, run in runs.items():
        summary = run.summary or {}
        score = summary.get("score", {}).get("mean")
        if score is None:
            score = first_score(run)
        traffic = summary.get("bytes")
        what = summary.get("strategy") or summary.get("task") or run.config.get("strategy")
        rows.append(
            [
                name,
                run.kind,
                str(what or ""),
                run.state,
                run.done,
                run.config.get("seed"),
                percent(score),
                percent(summary.get("gain", {}).get("mean")),
                None if traffic is None else traffic["up"] + traffic["down"],
                summary.get("seconds"),
            ]
        )
    return Section(
        "overview",
        TOGETHER,
        "The runs",
        "One line for each run: what it is, how far it came, and what it scores.",
        "Runs with different data or seeds differ for that reason as well; paired tests need "
        "atlas compare.",
        tables=[table(columns, rows)],
        texts=[{"title": "Settings that differ", "text": _differences(runs), "open": True}],
    )


def _differences(runs: Named) -> str:
    flat = {name: _flat(run.config) for name, run in runs.items()}
    keys = sorted({key for own in flat.values() for key in own})
    told = []
    for key in keys:
        values = {name: own.get(key, "not set") for name, own in flat.items()}
        if len(set(values.values())) > 1:
            told.append(
                f"{key}: " + ", ".join(f"{value} ({name})" for name, value in values.items())
            )
    return "\n".join(told) or "none"


def _flat(config: Mapping[str, object], start: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{start}{key}.")
        else:
            found[f"{start}{key}"] = str(value)
    return found


def clients_section(runs: Named) -> Section | None:
    """Every client under every run."""
    scores = {
        name: run.summary["score"]["clients"]
        for name, run in runs.items()
        if run.summary is not None
    }
    first = next(iter(runs.values()))
    clients = sorted(
        {c for own in scores.values() for c in own}, key=lambda c: (first.tasks.get(c, ""), c)
    )
    if not clients:
        return None
    shown = clients[:MOST_ROWS]
    series = [
        {
            "name": name,
            "colour": slot,
            "shape": SHAPES[slot % 6],
            "values": [percent(own.get(client)) for client in shown],
        }
        for slot, (name, own) in enumerate(scores.items())
    ]
    inks = [first.slot(client) for client in shown]
    axis = {**SCORE, "label": "test score, %"}
    return Section(
        "clients-together",
        TOGETHER,
        "Every client under every run",
        "Test scores of the clients, a mark for each run.",
        "Look for a run whose marks stand right of the others for all clients of a task.",
        charts=[dots(shown, series, axis, rowColours=inks, dodge=True)],
    )


def scores_section(runs: Named) -> Section | None:
    """Mean validation score of every run over rounds."""
    series = []
    for slot, (name, run) in enumerate(runs.items()):
        found = validated(run.events, "score", 100)
        means = grouped(found, dict.fromkeys(found, name))
        for rounds in means.values():
            points = {number: statistics.fmean(values) for number, values in rounds.items()}
            series.append(line(points, name, slot, shape=SHAPES[slot % 6]))
    if not series:
        return None
    axis = {**SCORE, "label": "validation score, %"}
    return Section(
        "scores-together",
        TOGETHER,
        "Scores over the rounds",
        "Mean validation score of all clients, a line for each run.",
        "Look for which run is ahead early, and which at the end.",
        charts=[lines(series, ROUND, axis, wide=True)],
    )


def losses_section(runs: Named) -> Section | None:
    """Loss bands by task, run against run: with and without routing, alignment and the like."""
    charts = [
        *_by_task(runs, "training", lambda run: by_client(run.events, "fitted", "loss")),
        *_by_task(runs, "validation", lambda run: validated(run.events, "loss")),
    ]
    if not charts:
        return None
    return Section(
        "losses-together",
        TOGETHER,
        "Losses by task",
        "Mean and range of the losses of each task's clients, a line for each run: so runs with "
        "and without routing, alignment or any other part can be held against each other.",
        "Look for bands that do not overlap.",
        charts=charts,
    )


def _by_task(runs: Named, name: str, read: Callable[[RunSource], Rounds]) -> list[Spec]:
    found: dict[str, list[Spec]] = {}
    for slot, (run_name, run) in enumerate(runs.items()):
        for task, rounds in grouped(read(run), run.tasks).items():
            spec = band(rounds, run_name, slot, shape=SHAPES[slot % 6])
            found.setdefault(task, []).append(spec)
    axis = {"label": f"{name} loss", "span": 0.02}
    return [
        lines(series, ROUND, axis, title=f"{task}, {name}", height=220)
        for task, series in sorted(found.items())
    ]


def steps_section(runs: Named) -> Section | None:
    """Right answers and loss of the first arm of every run over steps."""
    charts = []
    readers: dict[str, Callable[[RunSource], Rounds]] = {
        "Right answers, %": lambda run: (
            by_arm(run.events, "round_finished", "accuracy", 100)
            or by_arm(run.events, "round_finished", "test_accuracy", 100)
        ),
        "Training loss": lambda run: (
            trained(run.events, "loss") or trained(run.events, "train_loss", "measured")
        ),
    }
    for title, read in readers.items():
        series = []
        for slot, (name, run) in enumerate(runs.items()):
            for place, (arm, points) in enumerate(read(run).items()):
                series.append(line(points, f"{name}: {arm}", slot, dash=place > 0))
        if series:
            charts.append(lines(series, STEP, {}, title=title))
    if not charts:
        return None
    return Section(
        "steps-together",
        TOGETHER,
        "Training, run against run",
        "Right answers on validation sequences and loss in training; the first model of a run is "
        "drawn in full, others in dashes.",
        "Look for which run learns faster, and where it ends.",
        charts=charts,
    )


def beside(runs: Mapping[str, Sequence[Section]]) -> list[Section]:
    """The sections of every run, charts of one kind beside each other under the run's name."""
    order = list(dict.fromkeys(section.id for own in runs.values() for section in own))
    merged = []
    for key in order:
        charts: list[Spec] = []
        tables: list[Spec] = []
        texts: list[Spec] = []
        found = {
            name: section for name, own in runs.items() for section in own if section.id == key
        }
        for name, section in found.items():
            charts += [_titled(spec, name) for spec in section.charts]
            tables += [_titled(spec, name) for spec in section.tables]
            texts += [_titled(spec, name) for spec in section.texts]
        first = next(iter(found.values()))
        merged.append(replace(first, charts=charts, tables=tables, texts=texts))
    return merged


def _titled(spec: Spec, name: str) -> Spec:
    title = spec.get("title")
    return {**spec, "title": f"{name}: {title}" if title else name, "wide": False}
