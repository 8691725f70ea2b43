"""The memory of a memory run: its share and gates, the matrix itself, whether it is used."""

from __future__ import annotations

from atlas.report.html.charts import SCORE, SHARE, STEP, Section, dots, line, lines, percent, table
from atlas.report.html.sections.scores import SHAPES
from atlas.report.read.series import by_layer, floors, layer_means
from atlas.report.read.source import RunSource

MEMORY = "The memory"


def gates_section(run: RunSource) -> Section | None:
    """The memory's share in every layer with its floor, and the other gates."""
    if not run.arms:
        return None
    arm = run.arms[0]
    shares = by_layer(run.events, arm, "gate.mix.mean")
    stored = by_layer(run.events, arm, "gate.mix.storage.mean")
    others = layer_means(run.events, arm, ".mean")
    charts = []
    if shares:
        series = [line(own, name, slot) for slot, (name, own) in enumerate(shares.items())]
        series += [
            line(own, f"{name} in storage", slot, dash=True)
            for slot, (name, own) in enumerate(stored.items())
        ]
        if floor := floors(run.events, arm):
            series.append(line(floor, "floor", "soft", dash=True, step=True))
        axis = {**SHARE, "label": "share of the memory"}
        charts.append(lines(series, STEP, axis, title=f"{arm}: the memory's share in the output"))
    kept = {name: own for name, own in others.items() if name not in ("mix", "mix.storage")}
    if kept:
        series = [line(own, name, slot) for slot, (name, own) in enumerate(kept.items())]
        charts.append(lines(series, STEP, SHARE, title="Other gates, mean over layers"))
    if not charts:
        return None
    return Section(
        "gates",
        MEMORY,
        "Gates and their floors",
        "How much of each layer's output is the memory's, with the floor below which it cannot "
        "fall; and the gates of forgetting (alpha), momentum (eta) and step (theta).",
        "Look for a share that sinks onto its floor: the model would rather do without its memory.",
        charts=charts,
    )


MEASURES = {
    "M_norm": "Norm of the memory M",
    "S_norm": "Norm of the momentum S",
    "rank": "Effective rank of M (its spectrum)",
    "M_max": "Largest entry of M",
    "update": "Length of what is written",
    "retention": "Share kept per token",
}


def state_section(run: RunSource) -> Section | None:
    """Norms, spectrum and entries of the memory by layer."""
    if not run.arms:
        return None
    charts = []
    for key, title in MEASURES.items():
        found = by_layer(run.events, run.arms[0], key)
        if found:
            series = [line(own, name, slot) for slot, (name, own) in enumerate(found.items())]
            charts.append(lines(series, STEP, {}, title=title, height=200))
    if not charts:
        return None
    return Section(
        "state",
        MEMORY,
        "The memory itself",
        "Size, spectrum and entries of the memory matrix in every layer while it is trained: its "
        "effective rank says over how many directions the spectrum spreads.",
        "Look for norms that run away, and for an effective rank that falls to 1: all that is "
        "remembered then lies in one direction.",
        charts=charts,
    )


def retrieval_section(run: RunSource) -> Section | None:
    """Answers with the own, an emptied and another's memory."""
    parts = {"retrieval": "masked words", "lookup": "sums that were stored"}
    summary = run.summary or {}
    found = {words: summary[key] for key, words in parts.items() if summary.get(key)}
    if not found:
        return None
    names = {"own": "its own memory", "emptied": "an emptied one", "other": "another stream's"}
    series = [
        {"name": words, "colour": slot, "shape": SHAPES[slot],
         "values": [percent(own[key]) for own in found.values()]}
        for slot, (key, words) in enumerate(names.items())
    ]  # fmt: skip
    columns = {"questions": "text", "against": "text", "difference": "signed", "from": "signed"}
    columns |= {"to": "signed", "p (McNemar)": "number"}
    rows = []
    for words, own in found.items():
        for key in ("emptied", "other"):
            gap = own[f"against_{key}"]
            ends = [percent(value) for value in gap["interval"]]
            rows.append([words, names[key], percent(gap["difference"]), *ends, gap["p"]])
    axis = {**SCORE, "label": "% right"}
    return Section(
        "retrieval",
        MEMORY,
        "Is the memory used?",
        "The same questions answered with the memory of their own text, with an emptied memory and "
        "with the memory of another text.",
        "Look for the first mark well right of the other two: only then do answers come out of the "
        "memory.",
        charts=[dots(list(found), series, axis)],
        tables=[table(columns, rows, title="Paired on the same questions, 95 % intervals")],
    )
