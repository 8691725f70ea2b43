"""Anchor texts: generated sentences that every backbone can be shown, and that belong to nobody.

They are made of the words and constructions of the synthetic tasks, as statements and as questions,
with small sums among them. Every text has parts from two domains or is a question, and clients'
texts are neither, so no client's text is among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from atlas.data.grammar import order, paraphrase, sentiment
from atlas.data.lexicon import ADVERBS, BAD, DOMAINS, GOOD, PERSON_VERBS, TIMES, Domain
from atlas.errors import InputError
from atlas.runs.seeds import generator

Rng = np.random.Generator

PATIENCE = 20
"""Draws per wanted text after which the texts count as used up."""


def anchor_texts(count: int, seed: int) -> tuple[str, ...]:
    """Different texts, addressed by seed; fewer of them are the first of more.

    Raises:
        InputError: If so many different texts cannot be made.
    """
    rng, found = generator(seed, "anchors"), dict[str, None]()
    for _ in range(PATIENCE * count):
        if len(found) == count:
            break
        one, two = (DOMAINS[i] for i in rng.permutation(len(DOMAINS))[:2].tolist())
        maker = MAKERS[int(rng.integers(len(MAKERS)))]
        found.setdefault(maker(one, two, rng))
    if len(found) < count:
        raise InputError(
            f"{count} generated texts wanted, but only {len(found)} different ones can be made"
        )
    return tuple(found)


def _pick(rng: Rng, items: tuple[str, ...]) -> str:
    return items[int(rng.integers(len(items)))]


def _opinions(one: Domain, two: Domain, rng: Rng) -> str:
    """Two opinions, of two domains."""
    texts = (sentiment(domain, rng, int(rng.integers(2))) for domain in (one, two))
    return " ".join(text for parts in texts for text in parts)


def _report(one: Domain, two: Domain, rng: Rng) -> str:
    """What people of one domain did at places of another, and a remark."""
    abroad = replace(one, places=two.places)
    told = paraphrase(abroad, rng, int(rng.integers(2)))
    return f"{told[0]} {order(two, rng, 1)[0]}"


def _yes_or_no(one: Domain, two: Domain, rng: Rng) -> str:
    """An opinion, and a question about something else."""
    said = sentiment(two, rng, int(rng.integers(2)))[0]
    words = f"was the {_pick(rng, one.things)} {_pick(rng, ADVERBS)} {_judgement(one, rng)}?"
    asked = " ".join(words.split())
    return f"{said} {asked[0].upper()}{asked[1:]}"


def _who(one: Domain, two: Domain, rng: Rng) -> str:
    """A question about people."""
    verb = _pick(rng, PERSON_VERBS[int(rng.integers(len(PERSON_VERBS)))])
    time = _pick(rng, TIMES[int(rng.integers(len(TIMES)))])
    asked = _pick(rng, ("Who", "Why do you think somebody", "Did you hear who"))
    return f"{asked} {verb} the {_pick(rng, one.people)} {_pick(rng, two.places)} {time}?"


def _choice(one: Domain, two: Domain, rng: Rng) -> str:
    """A question with choices."""
    things = [_pick(rng, one.things), _pick(rng, two.things), _pick(rng, one.people)]
    listed = ", ".join(things[i] for i in rng.permutation(3).tolist())
    return f"What is {_judgement(one, rng)} and found {_pick(rng, one.places)}? Choices: {listed}."


def _sum(one: Domain, two: Domain, rng: Rng) -> str:
    """A small sum told as a story."""
    first, second = sorted(rng.integers(2, 60, size=2).tolist(), reverse=True)
    who, what = _pick(rng, one.people), _pick(rng, two.things)
    ends = (
        f"has {first} of one kind and {second} of another. How many in all?",
        f"had {first} and gave away {second}. How many are left?",
    )
    return f"The {who} counts every {what}. The {who} {_pick(rng, ends)}"


def _judgement(domain: Domain, rng: Rng) -> str:
    return _pick(rng, (*domain.good, *domain.bad, *GOOD, *BAD))


MAKERS: tuple[Callable[[Domain, Domain, Rng], str], ...] = (
    _opinions,
    _report,
    _yes_or_no,
    _who,
    _choice,
    _sum,
)
