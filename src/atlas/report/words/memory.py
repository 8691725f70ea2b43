"""What a memory run came to, in a few sentences, and what its models say of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atlas.config.memory import MemoryConfig
from atlas.report.words.english import counted, points, shown_sign, standard_error

PAIRS = 8
"""Of recall, where the settings name none."""
SURE = 0.05
"""The largest p at which chance is ruled out."""
LEAST_P = 0.001
"""Smaller ones are told as being below it."""


def memory_words(summary: Mapping[str, Any], config: MemoryConfig) -> str:
    """Which arm answers best, by how much, what the test can tell, and whether memory was used."""
    return " ".join(_sentences(summary, config))


def _sentences(summary: Mapping[str, Any], config: MemoryConfig) -> Iterator[str]:
    scores = sorted(summary["accuracy"].items(), key=lambda pair: -pair[1])
    (first, best), *others = scores
    told = "".join(f", {arm} {100 * score:.1f} %" for arm, score in others)
    episodes = config.objective == "episodes"
    chance = f"{'the commonest word' if 'retrieval' in summary else 'a guess'}"
    what = "masked words" if episodes and "retrieval" in summary else "answers"
    yield (
        f"{first} gets {100 * best:.1f} % of the {what} right{told}; "
        f"{chance} {100 * summary['chance']:.1f} %."
    )
    for arm, score in others:
        if shown_sign(best - score):
            yield f"{first} is {points(best - score)} ahead of {arm}."
        else:
            yield f"{first} and {arm} are level."
    if episodes:
        yield from _memory_words(summary)
    else:
        yield from _test_words(best, config)


def _memory_words(summary: Mapping[str, Any]) -> Iterator[str]:
    """Whether answers come out of the memory."""
    for part, what in (("retrieval", "masked words"), ("lookup", "sums that were stored")):
        found = summary.get(part)
        if found is None:
            continue
        yield (
            f"Of {found['questions']:,} {what} {100 * found['own']:.1f} % are right with its own "
            f"memory, {100 * found['emptied']:.1f} % with an emptied one and "
            f"{100 * found['other']:.1f} % with another stream's."
        )
        gaps = [found[f"against_{name}"] for name in ("emptied", "other")]
        least = min(gaps, key=lambda gap: float(gap["difference"]))
        worst = max(float(gap["p"]) for gap in gaps)
        low, high = least["interval"]
        if least["difference"] > 0 and worst <= SURE:
            p = f"p < {LEAST_P}" if worst < LEAST_P else f"p = {worst:.3f}"
            yield (
                f"At least {points(least['difference'])} of that (95 % interval {100 * low:.1f} to "
                f"{100 * high:.1f}) came out of the memory ({p}, exact McNemar test)."
            )
        else:
            yield "That it used its memory is not shown: the three are too much alike."


def _test_words(best: float, config: MemoryConfig) -> Iterator[str]:
    """How far the test can be trusted; answers of one sequence lean on each other."""
    task = config.task
    each = (task.pairs or PAIRS) if task.name == "recall" else task.length
    what = "question" if task.name == "recall" else "token"
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
