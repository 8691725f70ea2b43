"""A grokking run: learning by heart and understanding, waves, spectra, circles."""

from __future__ import annotations

import math
from typing import Any

from atlas.report.colours import PHASES
from atlas.report.html.charts import (
    SCORE,
    SHARE,
    STEP,
    Section,
    Spec,
    heatmap,
    line,
    lines,
    number,
    percent,
    scatter,
    table,
    thin,
    tile,
)
from atlas.report.html.sections.scores import RESULTS
from atlas.report.read.log import events_of
from atlas.report.read.phases import phase_spans
from atlas.report.read.source import RunSource

LEARNING = "Learning"
WAVES = "Waves"
PARTS = {"train": "pairs learned from", "test": "held-out pairs"}
SMALLEST = 1e-9
"""Losses below are drawn there, so that the axis shows what matters."""
FRAMES = 160
"""Steps of a spectrum that are drawn."""


def measured(run: RunSource, arm: str) -> list[Any]:
    """What was measured of an arm, in order."""
    return [e for e in events_of(run.events, "measured") if e.get("arm") == arm]


def headline(run: RunSource) -> tuple[str, list[Spec]]:
    """One sentence and the figures that matter most."""
    summary = run.summary
    if summary is None:
        return "", [tile("rounds done", run.done, "integer", f"of {run.rounds or '?'}")]
    arm = run.arms[0]
    found = summary["arms"][arm]
    right = 100 * found["test_accuracy"]
    text = f"After {summary['steps']} steps {arm} gets {right:.1f} % of pairs right that it has "
    text += "never seen"
    if found["generalised"] is not None and found["memorised"] is not None:
        text += f"; it knew its own pairs at step {found['memorised']} and the others at step "
        text += f"{found['generalised']}"
    text += "."
    tiles = [
        tile("held-out pairs", right, "percent", f"right, {arm}"),
        tile("learned pairs", 100 * found["train_accuracy"], "percent", f"right, {arm}"),
    ]
    if "control" in summary["arms"] and arm != "control":
        control = 100 * summary["arms"]["control"]["test_accuracy"]
        tiles.append(tile("control", control, "percent", "held-out pairs right"))
    if found["jump"]:
        tiles.append(tile("jump", found["jump"]["step"], "integer", "step at which it understood"))
    tiles.append(tile("time", summary["seconds"], "seconds", "of training and measuring"))
    return text, tiles


def spans(points: list[Any]) -> list[Spec]:
    """Phases as grounds."""
    return [
        {"from": start, "to": end, "name": phase, "colour": PHASES[phase][1]}
        for start, end, phase in phase_spans(points)
    ]


def learning_section(run: RunSource) -> Section | None:
    """Accuracy and loss of learned and held-out pairs, arm by arm."""
    charts = []
    for arm in run.arms:
        points = measured(run, arm)
        if not points:
            continue
        jump = ((run.summary or {}).get("arms", {}).get(arm) or {}).get("jump")
        marks = [{"x": jump["step"], "name": f"jump at {jump['step']}"}] if jump else []
        for name, ending, factor in (
            ("right answers, %", "accuracy", 100.0),
            ("loss", "loss", 1.0),
        ):
            series = []
            for slot, (part, words) in enumerate(PARTS.items()):
                known = {
                    p["step"]: factor * max(SMALLEST, value)
                    for p in points
                    if (value := number(p.get(f"{part}_{ending}"))) is not None
                }
                series.append(line(known, words, slot))
            axis: Spec = {"log": True} if ending == "loss" else {**SCORE, "label": "", "min": 0}
            title = f"{arm}: {name}"
            own = marks if ending == "accuracy" else []
            charts.append(lines(series, STEP, axis, title=title, spans=spans(points), marks=own))
    if not charts:
        return None
    return Section(
        "learning",
        LEARNING,
        "Learning by heart, and understanding",
        "Right answers and loss on the pairs that are learned from and on those held out; the "
        "ground shows the phase.",
        "Look for the long wait between the two curves, and for the jump that ends it.",
        charts=charts,
    )


MEASURES = {
    "Loss by waves": {
        "excluded_loss": "learned pairs without the key waves",
        "restricted_loss": "all pairs from the key waves alone",
        "train_loss": "learned pairs",
    },
    "How far it is waves": {
        "fourier_concentration": "neurons: share of their strongest wave",
        "embedding_concentration": "embedding: share of the five strongest",
        "circular_fit": "embedding: share of one circle",
    },
    "Norm of all weights": {"weight_norm": "norm of all weights"},
}


def waves_section(run: RunSource) -> Section | None:
    """Excluded and restricted loss, concentration, weight norm."""
    charts = []
    for title, keys in MEASURES.items():
        for arm in run.arms:
            points = measured(run, arm)
            series = [
                line({p["step"]: number(p.get(key)) for p in points}, words, slot)
                for slot, (key, words) in enumerate(keys.items())
            ]
            axis: Spec = SHARE if "waves" in title and "Loss" not in title else {"zero": True}
            if points:
                named = f"{arm}: {title[0].lower()}{title[1:]}"
                charts.append(lines(series, STEP, axis, title=named, spans=spans(points)))
    if not charts:
        return None
    return Section(
        "waves",
        WAVES,
        "What the answers owe to waves",
        "Loss with the key waves taken out and with nothing else left, how far neurons and "
        "embedding are made of few waves, and the size of the weights.",
        "Look for the loss without waves to rise while the loss from waves alone falls: the model "
        "moves over to its circuit before that shows.",
        charts=charts,
    )


def spectra_section(run: RunSource) -> Section | None:
    """Share of every frequency in the neurons over steps."""
    charts = []
    for arm in run.arms:
        points = [p for p in measured(run, arm) if p.get("spectra")]
        if not points:
            continue
        kept = [points[n] for n in thin(list(range(len(points))), FRAMES)]
        for operation in kept[0]["spectra"]:
            cells = [[100 * v for v in p["spectra"][operation]] for p in kept]
            turned = [list(row) for row in zip(*cells, strict=True)]
            charts.append(
                heatmap(
                    [str(n) for n in range(1, len(turned) + 1)][::-1],
                    [p["step"] for p in kept],
                    [{"name": operation, "values": turned[::-1]}],
                    title=f"{arm}: {operation}",
                    fill=True,
                    numeric=True,
                    low=0.0,
                    high=max(300 / len(turned), *(max(row) for row in turned)),
                    xlabel="step",
                    label="% of the power",
                    tall=300,
                )
            )
    if not charts:
        return None
    return Section(
        "spectra",
        WAVES,
        "Which waves the neurons are made of",
        "Rows are frequencies, columns steps: the brighter, the more of the neurons' power lies in "
        "that wave.",
        "Look for a few rows that light up while the rest goes dark: those are the key waves.",
        charts=charts,
    )


def circles_section(run: RunSource) -> Section | None:
    """Every residue in the plane of the embedding's strongest frequency."""
    charts = []
    for event in events_of(run.events, "tested"):
        for operation, found in (event.get("circles") or {}).items():
            count = len(found["points"])
            points = []
            for place, (residue, (x, y)) in enumerate(
                zip(found["residues"], found["points"], strict=True)
            ):
                turn = place * found["frequency"] % count / count
                slot = math.floor(6 * turn)
                shown = [["turn", f"{turn:.2f}", "text"]]
                points.append(
                    {"x": x, "y": y, "name": str(residue), "colour": slot, "lines": shown}
                )
            share = f"{100 * found['r_squared']:.0f} % of the embedding"
            title = f"{event['arm']}: {operation}, frequency {found['frequency']}, {share}"
            charts.append(scatter(points, {}, {}, equal=True, title=title, names=False))
    if not charts:
        return None
    return Section(
        "circles",
        WAVES,
        "Numbers on a circle",
        "Every residue in the plane of the embedding's strongest wave, at the end; colours go once "
        "round in six steps.",
        "Look for a ring whose colours follow each other: addition has become rotation.",
        charts=charts,
    )


def arms_section(run: RunSource) -> Section | None:
    """All figures of every arm."""
    if run.summary is None:
        return None
    columns = {"arm": "text", "held-out right": "score", "learned right": "score"}
    columns |= {
        "knew its own": "integer",
        "knew the others": "integer",
        "neurons in waves": "share",
    }
    columns |= {"on a circle": "share", "weight norm": "number", "parameters": "integer"}
    rows = []
    for arm in run.arms:
        own = run.summary["arms"][arm]
        known = [percent(own["test_accuracy"]), percent(own["train_accuracy"])]
        steps = [own["memorised"], own["generalised"]]
        shares = [own["fourier"]["neurons"], own["circular"]["r_squared"]]
        rows.append([arm, *known, *steps, *shares, own["weight_norm"], own["parameters"]])
    phases = [
        [arm, phase["name"], phase["step"]]
        for arm in run.arms
        for phase in run.summary["arms"][arm]["phases"]
    ]
    return Section(
        "arms",
        RESULTS,
        "What each network came to",
        "Figures at the end, and the first step of every phase.",
        "Look for the control: with nothing to push it to a simple solution, it should know its "
        "own pairs alone.",
        tables=[
            table(columns, rows),
            table({"arm": "text", "phase": "text", "from step": "integer"}, phases, title="Phases"),
        ],
    )
