"""What a federation came to, in a few sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atlas.config.federation import FederationConfig
from atlas.report.words.budgets import budget_words
from atlas.report.words.declined import Answers, Events, read_answers
from atlas.report.words.english import (
    counted,
    listed,
    points,
    shown_sign,
    signed,
    standard_error,
)

Summary = Mapping[str, Any]
MOST_EXAMPLES = 3
"""Clients that a warning names where it holds for many."""


def federation_words(summary: Summary, events: Events, config: FederationConfig) -> str:
    """Who gained, who declined and why, and what the test sets can tell."""
    return " ".join(_sentences(summary, events, config))


def _sentences(summary: Summary, events: Events, config: FederationConfig) -> Iterator[str]:
    yield from gain_words(summary)
    yield from declined_words(read_answers(events, config), summary, config)
    yield from unused_words(summary, config)
    yield from step_words(summary)
    yield from budget_words(summary.get("budgets") or {})
    yield from trouble_words(summary)
    yield from certainty_words(summary)


def gain_words(summary: Summary) -> Iterator[str]:
    """Who gained over training alone, and by how much."""
    scores = summary["score"]["clients"]
    if summary["strategy"] == "local":
        yield "Every client trained for itself (strategy=local), so there is nothing to gain here."
        return
    if "alone" not in summary:
        yield "Nobody was trained alone in this run, so it cannot tell what anybody gained."
        return
    gains = {
        client: score - summary["alone"]["clients"][client] for client, score in scores.items()
    }
    if len(gains) == 1:
        yield _one_gain(*next(iter(gains.items())))
        return
    yield from _many_gains(gains)
    yield f"The mean gain is {signed(summary['gain']['mean'])} points."


def _one_gain(client: str, gain: float) -> str:
    sign = shown_sign(gain)
    if not sign:
        return f"{client} scores as it does alone."
    verb = "gained" if sign > 0 else "lost"
    return f"{client} {verb} {points(gain)} {'over' if sign > 0 else 'against'} training alone."


def _many_gains(gains: Mapping[str, float]) -> Iterator[str]:
    ordered = sorted(gains, key=lambda client: (-gains[client], client))
    up = [client for client in ordered if shown_sign(gains[client]) > 0]
    down = [client for client in ordered if shown_sign(gains[client]) < 0]
    level = len(gains) - len(up) - len(down)
    if not up:
        yield f"None of the {len(gains)} clients gained over training alone."
    elif len(up) == len(gains):
        best = f"{up[0]} most ({signed(gains[up[0]])} points)"
        yield f"All {len(gains)} clients gained over training alone, {best}."
    else:
        best = f"{up[0]} {'most ' if len(up) > 1 else ''}({signed(gains[up[0]])} points)"
        yield f"{len(up)} of {len(gains)} clients gained over training alone, {best}."
    rest = []
    if down:
        worst = f"{down[-1]} {'most ' if len(down) > 1 else ''}({signed(gains[down[-1]])})"
        rest.append(f"{len(down)} lost, {worst}")
    if level:
        rest.append(f"{level} {'scores' if level == 1 else 'score'} the same")
    if rest:
        yield f"{'; '.join(rest)}."


def declined_words(answers: Answers, summary: Summary, config: FederationConfig) -> Iterator[str]:
    """Who took nothing of what was offered, and why."""
    everybody = len(summary["score"]["clients"])
    if answers.declined:
        yield _refusal(answers.declined, everybody, config)
    for client, (none, offers) in list(answers.sometimes.items())[:3]:
        yield f"{client} declined {none} of {counted(offers, 'mixture')}."
    if len(answers.sometimes) > 3:
        more = counted(len(answers.sometimes) - 3, "more client")
        yield f"{more} declined some of theirs."
    if answers.returned:
        one = len(answers.returned) == 1
        yield (
            f"{listed(answers.returned)} ended with what {'it' if one else 'they'} learned alone, "
            f"which {'its' if one else 'their'} validation data clearly preferred."
        )
    # Where all are by themselves on purpose there is nothing to explain.
    if answers.lonely and summary["strategy"] not in ("local", "pooled"):
        yield f"{listed(answers.lonely)} had nobody alike to learn from."


def _refusal(declined: list[str], everybody: int, config: FederationConfig) -> str:
    all_of_many = len(declined) == everybody > 1
    who = f"All {everybody} clients" if all_of_many else listed(declined)
    its = "its" if len(declined) == 1 else "their"
    reason = f"better by more than {config.keep_margin:g} standard errors (keep_margin)"
    if config.keep_margin == 1:
        reason = "better by more than a standard error (keep_margin=1)"
    if config.relation.eta == "auto":
        reason = "the best"
    end = "That is why nobody gained" if len(declined) == everybody else f"That leaves {its} gain 0"
    return (
        f"{who} declined every mixture offered: on {its} validation data {its} own adapter was "
        f"{reason}. {end}; keep_best=false makes clients take mixtures as they are."
    )


def unused_words(summary: Summary, config: FederationConfig) -> Iterator[str]:
    """Who was given ranks that hold next to nothing."""
    unused = summary.get("unused")
    if not unused:
        return
    # The summary and the report's table name all of them, with how much lies beyond which rank.
    clients = sorted(unused, key=lambda client: (-unused[client]["rank"], client))
    who = listed(clients)
    if len(clients) > MOST_EXAMPLES:
        count = counted(len(summary["score"]["clients"]), "client")
        who = f"{len(clients)} of {count}, such as {listed(clients[:MOST_EXAMPLES])},"
    use, its = ("uses", "its") if len(clients) == 1 else ("use", "their")
    advice = "smaller ranks would do"
    unequal = len({rank for ranks in summary["ranks"].values() for rank in ranks}) > 1
    if unequal and not config.mixing.feedback and config.mixing.cut == "leading":
        advice = "try mixing.feedback=1 or smaller ranks"
    yield f"{who} {use} less than half of {its} ranks; {advice}."


def step_words(summary: Summary) -> Iterator[str]:
    """What was estimated of steps, where it was."""
    steps = summary.get("steps")
    if not steps:
        return
    known = {client: told for client, told in steps.items() if told is not None}
    if known:
        least, most = (pick(known, key=lambda c: known[c]["keep"]) for pick in (min, max))
        yield (
            f"Of what sets them apart from their neighbours, clients should keep "
            f"{known[least]['keep']:.0%} ({least}) to {known[most]['keep']:.0%} ({most}); the rest "
            "is noise (relation.eta=shrink)."
        )
    if len(known) < len(steps):
        yield (
            f"Nothing could be estimated of {listed(sorted(set(steps) - set(known)))}: without "
            "neighbours, or with fewer than two batches, a step is as with relation.eta=even."
        )


def trouble_words(summary: Summary) -> Iterator[str]:
    """Replies that did not count."""
    for key, one, many in (
        ("refused", "1 reply was refused", "{} replies were refused"),
        ("failures", "1 request failed", "{} requests failed"),
    ):
        count = len(summary[key])
        if count:
            clients = sorted({str(entry["client"]) for entry in summary[key]})
            told = one if count == 1 else many.format(count)
            yield f"{told} ({listed(clients)}); {key} in summary.json says why."


def certainty_words(summary: Summary) -> Iterator[str]:
    """How far a test set of this size can be trusted."""
    counts = summary.get("test_examples")
    if not counts:
        return
    right = summary["accuracy"]["clients"]
    errors = [standard_error(right[client], count) for client, count in counts.items()]
    least, most = min(counts.values()), max(counts.values())
    size = (
        counted(most, "test example") if least == most else f"{least:,} to {most:,} test examples"
    )
    low, high = f"{100 * min(errors):.1f}", f"{100 * max(errors):.1f}"
    spread = low if low == high else f"{low} to {high}"
    yield (
        f"With {size} a client, one score is known to about ± {spread} points (one standard "
        "error): a smaller gain of a single client may be chance."
    )
