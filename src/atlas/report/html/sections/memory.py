"""A memory run: what its models know, losses, waves, alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas.report.colours import PHASES
from atlas.report.html.charts import (
    SCORE,
    SHARE,
    STEP,
    Section,
    Spec,
    dots,
    level,
    line,
    lines,
    number,
    percent,
    table,
    tile,
)
from atlas.report.html.sections.scores import RESULTS, SHAPES
from atlas.report.read.log import Rounds, events_of
from atlas.report.read.series import by_arm, trained
from atlas.report.read.source import RunSource
from atlas.report.tables.runs import ALERTS

TRAINING = "Training"
TASKS = {
    "accuracy": "answers",
    "masked_word_accuracy": "masked words",
    "lookup_accuracy": "sums looked up in the memory",
    "math_train_accuracy": "sums trained on, memory empty",
    "math_accuracy": "held-out sums, memory empty",
}
CURVES = {
    "loss": "validation loss",
    "retrieval_loss": "validation loss at masks",
    "bits_per_byte": "bits per byte",
    "perplexity": "perplexity",
}


def arm_lines(run: RunSource, found: Rounds) -> list[Spec]:
    """A line for each arm, in the colour it has everywhere."""
    return [
        line(found[arm], arm, slot, shape=SHAPES[slot % 6])
        for slot, arm in enumerate(run.arms)
        if arm in found
    ]


def headline(run: RunSource) -> tuple[str, list[Spec]]:
    """One sentence and the figures that matter most."""
    summary = run.summary
    if summary is None:
        tiles = [tile("rounds done", run.done, "integer", f"of {run.rounds or '?'}")]
        return "", tiles
    ranked = sorted(summary["accuracy"].items(), key=lambda pair: -pair[1])
    (best, right), *others = ranked
    text = f"After {summary['steps']} steps {best} answers {100 * right:.1f} % right"
    for arm, score in others[:1]:
        text += f", {100 * (right - score):.1f} points more than {arm}"
    text += f"; guessing would get {100 * summary['chance']:.1f} %."
    tiles = [
        tile(f"{arm}, right answers", 100 * score, "percent", "on the test")
        for arm, score in ranked
    ]
    if summary["gates"]["mean"] is not None:
        note = f"of its layers' output; floor {summary['gates']['floor']:.2f}"
        tiles.append(tile("share of the memory", summary["gates"]["mean"], "share", note))
    if (bits := number(summary.get("bits_per_byte"))) is not None:
        tiles.append(tile("bits per byte", bits, "share", "8 is a guess"))
    tiles.append(tile("time", summary["seconds"], "seconds", "of training"))
    return text, tiles


def arms_section(run: RunSource) -> Section | None:
    """What each model gets right on the test."""
    summary = run.summary
    if summary is None:
        return None
    arms = [arm for arm in run.arms if arm in summary["arms"]]
    found: Mapping[str, Any] = summary["arms"]
    series: list[Spec] = []
    for slot, (key, words) in enumerate(TASKS.items()):
        values = [percent(found[arm].get(key)) for arm in arms]
        if any(value is not None for value in values):
            series.append({"name": words, "colour": slot, "shape": SHAPES[slot], "values": values})
    columns = {"arm": "text", **{s["name"]: "score" for s in series}}
    columns |= {"loss": "number", "parameters": "integer", "seconds": "seconds"}
    rows = [
        [arm, *(s["values"][n] for s in series), *(found[arm].get(k) for k in FACTS)]
        for n, arm in enumerate(arms)
    ]
    chance = level(100 * summary["chance"], "chance", "majority")
    axis = {**SCORE, "label": "% right on the test"}
    return Section(
        "arms",
        RESULTS,
        "What each model knows",
        "Right answers on test sequences that nobody trained on, by model and kind of question.",
        "Look for the distance to chance, and from the model with a memory to the one without.",
        charts=[dots(arms, series, axis, levels=[chance])],
        tables=[table(columns, rows)],
    )


FACTS = ("loss", "parameters", "seconds")


def accuracy_section(run: RunSource) -> Section | None:
    """Right answers over steps by kind of question."""
    charts = []
    for key, words in TASKS.items():
        found = by_arm(run.events, "round_finished", key, 100)
        if found and not (key == "masked_word_accuracy" and _same(run, key)):
            axis = {**SCORE, "label": "% right"}
            title = words[0].upper() + words[1:]
            spec = lines(arm_lines(run, found), STEP, axis, title=title, spans=spans(run))
            chance = (run.summary or _began(run)).get("chance")
            if key == "accuracy" and chance is not None:
                spec["levels"] = [level(100 * chance, "chance", "majority")]
            charts.append(spec)
    if not charts:
        return None
    return Section(
        "accuracy",
        TRAINING,
        "Right answers over steps",
        "Share of right answers on validation sequences after every round, by kind of question.",
        "Look for when a model with a memory leaves the others behind.",
        charts=charts,
    )


def _same(run: RunSource, key: str) -> bool:
    """Whether a figure is `accuracy` under its other name."""
    own, other = (by_arm(run.events, "round_finished", k, 100) for k in (key, "accuracy"))
    return own == other


def _began(run: RunSource) -> Mapping[str, Any]:
    return next(events_of(run.events, "started", "resumed"), {})


def spans(run: RunSource) -> list[Spec]:
    """Phases of grokking as grounds, from each one's first step to the next one's."""
    phases = (run.summary or {}).get("phases") or []
    if not phases:
        return []
    ends = [phase["step"] for phase in phases[1:]] + [(run.summary or {}).get("steps", 0)]
    return [
        {
            "from": phase["step"],
            "to": end,
            "name": phase["name"],
            "colour": PHASES[phase["name"]][1],
        }
        for phase, end in zip(phases, ends, strict=True)
        if phase["name"] in PHASES
    ]


def losses_section(run: RunSource) -> Section | None:
    """Losses in training and on validation, bits per byte, perplexity."""
    found = {"training loss": trained(run.events, "loss")}
    for key in ("storage_loss", "retrieval_loss"):
        words = "storage: loss of the next token" if key[0] == "s" else "retrieval: loss at masks"
        found[words] = trained(run.events, key)
    found |= {words: by_arm(run.events, "round_finished", key) for key, words in CURVES.items()}
    charts = []
    for words, own in found.items():
        if own:
            values = [v for points in own.values() for v in points.values()]
            log = min(values) > 0 and max(values) > 6 * min(values)
            title = words[0].upper() + words[1:]
            charts.append(lines(arm_lines(run, own), STEP, {"log": log}, title=title, height=220))
    if not charts:
        return None
    return Section(
        "losses",
        TRAINING,
        "Losses",
        "Loss of training steps and, after every round, of validation sequences; for text also "
        "bits per byte and perplexity.",
        "Look for validation that stops falling while training goes on.",
        charts=charts,
    )


def waves_section(run: RunSource) -> Section | None:
    """How far residues are waves, over steps, with the phases."""
    if not run.arms:
        return None
    figures = {"fourier_concentration": "Fourier concentration", "circular_fit": "circle, R²"}
    found = {words: trained(run.events, key).get(run.arms[0]) for key, words in figures.items()}
    series = [line(own, name, n) for n, (name, own) in enumerate(found.items()) if own]
    if not series:
        return None
    return Section(
        "waves",
        TRAINING,
        "Waves in the embedding of numbers",
        "How far the embedding of residues is made of few waves, and how well it lies on a circle; "
        "the ground shows the phase of grokking.",
        "Look for both to rise before held-out sums are right.",
        charts=[lines(series, STEP, SHARE, spans=spans(run), wide=True)],
    )


def stability_section(run: RunSource) -> Section | None:
    """Gradient norms and what threatens training; alerts as a table."""
    charts = []
    figures = {
        "norm": "Norm of the gradient",
        "softmax_collapse": "Softmax collapse",
        "gate_collapse_risk": "Collapse risk of the gate",
        "rate": "Learning rate",
    }
    for key, title in figures.items():
        found = trained(run.events, key)
        if found:
            charts.append(lines(arm_lines(run, found), STEP, {}, title=title, height=190))
    columns = {"step": "integer", "arm": "text", "layer": "text", "what": "text"}
    columns |= {"value": "number", "threshold": "number", "state": "text"}
    rows = [
        [e.get("step"), e.get("arm"), e.get("layer", ""), ALERTS.get(e.get("measure", ""), ""),
         e.get("value"), e.get("threshold"), "raised" if e.get("raised") else "over"]
        for e in events_of(run.events, "alert")
    ]  # fmt: skip
    rows += [
        [e.get("step"), e.get("arm"), "", str(e.get("reason", "")), None, None, "diverged"]
        for e in events_of(run.events, "diverged")
    ]
    if not charts and not rows:
        return None
    told = f" There were {len(rows)} alerts." if rows else " There were no alerts."
    return Section(
        "stability",
        TRAINING,
        "Stability",
        f"What would announce trouble in training.{told}",
        "Look for gradients that grow by orders of magnitude.",
        charts=charts,
        tables=[table(columns, rows, title="Alerts")] if rows else [],
    )
