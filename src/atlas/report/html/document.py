"""A run folder, several or a study as one document of sections: what reports and live pages show.

A new section is a function from a `RunSource` to a `Section`, or to None where the run has nothing
of its kind, and one line in `SECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from atlas.config.load import load_resolved
from atlas.errors import InputError
from atlas.report.colours import SLOTS
from atlas.report.html.charts import Section, Spec
from atlas.report.html.sections import (
    about,
    capacity,
    exchange,
    grokking,
    memory,
    memory_state,
    ranks_used,
    relations,
    scores,
    steps,
    study,
    together,
)
from atlas.report.read.source import RunSource, read_run
from atlas.report.words.english import counted
from atlas.report.words.federation import federation_words
from atlas.report.words.grokking import grokking_words
from atlas.report.words.memory import memory_words
from atlas.report.words.plain_text import spelled_values
from atlas.runs.files import plain

Document = dict[str, Any]
Make = Callable[[RunSource], Section | None]

SECTIONS: dict[str, tuple[Make, ...]] = {
    "federation": (
        scores.clients_section,
        scores.scores_section,
        scores.losses_section,
        relations.cluster_scores_section,
        relations.mixing_section,
        relations.taken_section,
        steps.steps_section,
        relations.affinity_section,
        relations.fingerprints_section,
        relations.clusters_section,
        capacity.ranks_section,
        capacity.memory_section,
        capacity.budgets_section,
        capacity.importance_section,
        ranks_used.energy_section,
        exchange.bytes_section,
        exchange.routing_section,
        exchange.beta_section,
        exchange.alignment_section,
        exchange.mixtures_section,
        exchange.signatures_section,
        exchange.data_section,
        exchange.trouble_section,
        about.about_section,
    ),
    "memory": (
        memory.arms_section,
        memory.accuracy_section,
        memory.losses_section,
        memory.waves_section,
        memory.stability_section,
        memory_state.gates_section,
        memory_state.state_section,
        memory_state.retrieval_section,
        about.about_section,
    ),
    "grokking": (
        grokking.arms_section,
        grokking.learning_section,
        grokking.waves_section,
        grokking.spectra_section,
        grokking.circles_section,
        about.about_section,
    ),
}
"""By kind of run, in the order of the page."""

HEADLINES = {
    "federation": scores.headline,
    "memory": memory.headline,
    "grokking": grokking.headline,
}
WORDS = {
    "federation": "Federation: many clients, each with an adapter of its own",
    "memory": "Models that learn at test time",
    "grokking": "Learning arithmetic",
}
BROKEN = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)
"""What a foreign or damaged file can do to whoever reads it."""
DIGITS = 5
"""Of a number in a page; the run folder has all of them."""


def run_document(path: Path) -> Document:
    """The document of one run.

    Raises:
        InputError: It is no run folder.
    """
    run = read_run(path)
    sections, missing = _sections(run)
    (headline, tiles), lost = _attempt(lambda: HEADLINES[run.kind](run), ("", []), "the headline")
    more, _ = _attempt(lambda: _words(run), "", "the words")
    return _finish(
        title=run.name,
        kind=run.kind,
        subtitle=_subtitle(run),
        state=run.state,
        headline=headline,
        more=more,
        tiles=tiles,
        missing=[*run.missing, *missing, *lost],
        sections=sections,
    )


def _sections(run: RunSource) -> tuple[list[Section], list[str]]:
    """All sections that the run has something for, and what could not be drawn."""
    found: list[Section] = []
    missing: list[str] = []
    for make in SECTIONS[run.kind]:
        what = make.__name__.removesuffix("_section").replace("_", " ")
        section, lost = _attempt(lambda make=make: make(run), None, what)  # type: ignore[misc]
        missing += lost
        if section is not None:
            found.append(section)
    return found, missing


def _attempt(make: Callable[[], Any], otherwise: Any, what: str) -> tuple[Any, list[str]]:  # noqa: ANN401
    """What comes of it, or else what to say of it: one odd event must not cost the page."""
    try:
        return make(), []
    except BROKEN as error:
        told = f"{type(error).__name__}: {error}"
        return otherwise, [f"The run folder has something odd in it; not shown: {what} ({told})."]


def _words(run: RunSource) -> str:
    """The paragraph that the end of a run shows; settings of another version have none."""
    if run.summary is None:
        return ""
    try:
        config: Any = load_resolved(run.path / "config.yaml")
    except InputError:
        return ""
    if run.kind == "grokking":
        return grokking_words(run.summary)
    if run.kind == "memory":
        return memory_words(run.summary, config)
    return federation_words(run.summary, run.events, config)


def _subtitle(run: RunSource) -> str:
    what = run.config.get("strategy") if run.kind == "federation" else None
    if run.kind == "federation":
        tasks = sorted(set(run.tasks.values()))
        parts = [counted(len(run.clients), "client"), ", ".join(tasks)]
    else:
        parts = [str((run.summary or {}).get("task", "")), ", ".join(run.arms)]
    done = f"{run.done} of {run.rounds} rounds" if run.rounds else ""
    seed = f"seed {run.config['seed']}" if "seed" in run.config else ""
    return " · ".join(str(part) for part in (what, *parts, done, seed, run.state) if part)


def runs_document(paths: Sequence[Path]) -> Document:
    """The document of several runs, side by side."""
    runs = together.named_runs([read_run(path) for path in paths])
    parts = {name: _sections(run) for name, run in runs.items()}
    first, lost = _attempt(lambda: together.together(runs), [], "run against run")
    missing = [f"{name}: {told}" for name, run in runs.items() for told in run.missing]
    missing += [f"{name}: {told}" for name, (_, own) in parts.items() for told in own]
    kinds = {run.kind for run in runs.values()}
    return _finish(
        title=", ".join(runs),
        kind=kinds.pop() if len(kinds) == 1 else "",
        subtitle=f"{len(runs)} runs side by side",
        state="",
        headline="",
        more="",
        tiles=[],
        missing=[*missing, *lost],
        sections=[*first, *together.beside({name: own for name, (own, _) in parts.items()})],
    )


def study_document(result: Mapping[str, Any], folder: Path) -> Document:
    """The document of a study, from what `compare.json` holds."""
    makers: list[Callable[[], Any]] = [
        lambda: study.arms_section(result),
        lambda: study.tasks_section(result),
        lambda: study.clients_section(result),
        lambda: study.costs_section(result),
        lambda: study.sweep_sections(result),
    ]
    sections: list[Section] = []
    missing: list[str] = []
    for make in makers:
        made, lost = _attempt(make, None, "a part of the study")
        missing += lost
        sections += made if isinstance(made, list) else [made] if made is not None else []
    (headline, tiles), lost = _attempt(lambda: study.headline(result), ("", []), "the headline")
    runs = sorted(path.parent for path in folder.glob("*/*/config.yaml"))
    listing = "\n".join(str(run.relative_to(folder)) for run in runs)
    texts: list[Spec] = [{"title": f"Runs in {folder}", "text": listing, "open": False}]
    if runs:
        last = read_run(runs[0])
        texts += about.about_section(last).texts
    told = "Every run of the study has a folder of its own, with its own report."
    sections.append(Section("about", about.ABOUT, "How it was made", told, texts=texts))
    return _finish(
        title=str(result.get("study", folder.name)),
        kind="study",
        subtitle=f"{len(result.get('rows', []))} runs compared",
        state="finished",
        headline=headline,
        more="",
        tiles=tiles,
        missing=[*missing, *lost],
        sections=sections,
    )


def _finish(*, kind: str, sections: Sequence[Section], **parts: object) -> Document:
    """Plain values that any JSON reader takes, rounded, with nothing that steers a terminal."""
    document = {
        "atlas": _version(),
        "kind": kind,
        "kind_words": WORDS.get(kind, "Study" if kind == "study" else "Runs"),
        "slots": len(SLOTS),
        "sections": [asdict(section) for section in sections],
        **parts,
    }
    shown: Document = _rounded(spelled_values(plain(document)))
    return shown


def _version() -> str:
    """Of Atlas, where it is installed."""
    try:
        return metadata.version("atlas-personal")
    except metadata.PackageNotFoundError:
        return ""


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(own) for key, own in value.items()}
    if isinstance(value, list):
        return [_rounded(own) for own in value]
    return value
