"""What a grokking run came to, in a few sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atlas.report.words.english import listed


def grokking_words(summary: Mapping[str, Any]) -> str:
    """Arm by arm: what it knows, when it came to know it, and the phases on the way."""
    return " ".join(sentence for arm in _arms(summary) for sentence in _sentences(summary, arm))


def _arms(summary: Mapping[str, Any]) -> list[str]:
    """The one that is to grok first."""
    return sorted(summary["arms"], key=lambda arm: arm == "control")


def _sentences(summary: Mapping[str, Any], arm: str) -> Iterator[str]:
    found = summary["arms"][arm]
    held_out = f"{100 * found['test_accuracy']:.1f} % of the held-out pairs"
    learned = f"{100 * found['train_accuracy']:.1f} % of those it learned from"
    yield f"{arm} gets {held_out} right and {learned}; a guess {100 * summary['chance']:.1f} %."
    if found["generalised"] is not None and found["memorised"] is not None:
        later = found["generalised"] - found["memorised"]
        yield (
            f"It knew what it learned from at step {found['memorised']} and the held-out pairs "
            f"{later} steps later."
        )
    yield _phase_words(found)
    if len(found["operations"]) > 1:
        each = [
            f"{name} {100 * own['test_accuracy']:.1f} %"
            for name, own in found["operations"].items()
        ]
        yield f"By operation: {', '.join(each)}."


def _phase_words(found: Mapping[str, Any]) -> str:
    phases = [f"{phase['name']} from step {phase['step']}" for phase in found["phases"]]
    if not phases:
        return "It was not measured often enough for a phase."
    if len(phases) == 1:
        said = f"Its phase is {found['phases'][0]['name']} throughout"
    else:
        said = f"Its phases: {listed(phases)}"
    jump = found["jump"]
    if jump is None:
        return f"{said}; its accuracy on held-out pairs has no jump."
    return f"{said}; its accuracy on held-out pairs jumps at step {jump['step']}."
