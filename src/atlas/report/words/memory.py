"""What a memory run came to, in a few sentences, and what its models say of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atlas.config.memory import MemoryConfig
from atlas.report.words.english import counted, points, shown_sign, standard_error

PAIRS = 8
"""Of recall, where the settings name none."""


def memory_words(summary: Mapping[str, Any], config: MemoryConfig) -> str:
    """Which arm answers best, by how much, and what the test can tell."""
    return " ".join(_sentences(summary, config))


def _sentences(summary: Mapping[str, Any], config: MemoryConfig) -> Iterator[str]:
    scores = sorted(summary["accuracy"].items(), key=lambda pair: -pair[1])
    (first, best), *others = scores
    told = "".join(f", {arm} {100 * score:.1f} %" for arm, score in others)
    chance = f"a guess {100 * summary['chance']:.1f} %"
    yield f"{first} gets {100 * best:.1f} % of the answers right{told}; {chance}."
    for arm, score in others:
        if shown_sign(best - score):
            yield f"{first} is {points(best - score)} ahead of {arm}."
        else:
            yield f"{first} and {arm} are level."
    yield from _test_words(best, config)


def _test_words(best: float, config: MemoryConfig) -> Iterator[str]:
    """How far the test can be trusted; answers of one sequence lean on each other."""
    task = config.task
    each = (task.pairs or PAIRS) if task.name == "recall" else task.length
    what = "question" if task.name == "recall" else "byte"
    error = standard_error(best, task.test * each)
    yield (
        f"The test has {counted(task.test, 'sequence')} of {counted(each, what)}: a figure is "
        f"known to about ± {100 * error:.1f} points at best (one standard error)."
    )


def next_words(found: Mapping[str, Any]) -> str:
    """What a model expects after a text: the likeliest next tokens, and how it would go on."""
    tokens = ", ".join(f"{part['token']!r} {100 * part['share']:.1f} %" for part in found["next"])
    return f"next: {tokens}\nlikeliest continuation: {found['answer']!r}"


def score_words(found: Mapping[str, Any]) -> str:
    """How well a model foresees a text, each figure with what it means."""
    lines = (
        ("tokens", f"{found['tokens']:,}", f"foreseen: {found['bytes']:,} bytes of the file"),
        ("loss", f"{found['loss']:.4f}", "mean of minus the log of the right token's share"),
        ("perplexity", f"{found['perplexity']:.3f}", "a guess among so many tokens does as well"),
        ("bits per byte", f"{found['bits_per_byte']:.4f}", "whatever the tokens; 8 is a guess"),
        ("accuracy", f"{100 * found['accuracy']:.1f}", "% of tokens that were the likeliest"),
    )
    return "\n".join(f"{name:>13}  {figure:>10}  {meaning}" for name, figure, meaning in lines)
