"""Sentences of the three synthetic tasks, drawn from a domain's words.

Each maker takes a domain, a generator and the label that the texts shall carry. Domains share
their judgements, verbs and constructions, so what one client learns of them serves another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from atlas.data.lexicon import (
    ADVERBS,
    ASSENTS,
    BAD,
    BLAME,
    CONCESSIONS,
    CONTRASTS,
    DENIALS,
    DISSENTS,
    FUNCTION_WORDS,
    GOOD,
    NEGATIONS,
    OPENERS,
    PERSON_VERBS,
    PRAISE,
    TIMES,
    Domain,
)

Rng = np.random.Generator
T = TypeVar("T")

# The shares below set how hard the tasks are: a small adapter on a small sentence encoder, trained
# on 48 examples of one client, is right about seven times in ten, and about nine times in ten
# when it has learned from 500 examples of several clients.
MIXED = 0.4  # opinions in which praise and blame stand side by side
CLOSED = 0.6  # opinions that end in a verdict
TWO_CHANGES = 0.5  # near misses that differ in a second point
NEGATED = 0.05  # reports of what did not happen
SWAPS = 2  # pairs of neighbouring words that change places


def _pick(rng: Rng, items: Sequence[T]) -> T:
    return items[int(rng.integers(len(items)))]


def _pair(rng: Rng, items: Sequence[T]) -> tuple[T, T]:
    one, two = rng.permutation(len(items))[:2].tolist()
    return items[one], items[two]


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[0].upper() + text[1:] + "."


def _judgement(domain: Domain, rng: Rng, label: int) -> str:
    """A predicate of praise (1) or blame (0); one in four belongs to the domain alone."""
    own, shared = (domain.good, GOOD) if label else (domain.bad, BAD)
    return _pick(rng, own) if rng.random() < 0.25 else _pick(rng, shared)


def _adjective(domain: Domain, rng: Rng, label: int) -> str:
    """A judgement that can stand before a noun, with its article."""
    pool = (*domain.good, *GOOD) if label else (*domain.bad, *BAD)
    word = _pick(rng, [word for word in pool if " " not in word])
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _clause(domain: Domain, rng: Rng, label: int, thing: str) -> str:
    """One opinion: denied, told by what happened, or plain."""
    kind = rng.random()
    if kind < 0.1:
        return f"the {thing} was {_pick(rng, DENIALS)} {_judgement(domain, rng, 1 - label)}"
    if kind < 0.3:
        return _pick(rng, domain.luck if label else domain.mishaps)
    return f"the {thing} was {_pick(rng, ADVERBS)} {_judgement(domain, rng, label)}"


def _clauses(domain: Domain, rng: Rng, labels: tuple[int, int]) -> tuple[str, str]:
    """Two opinions of two things."""
    one, two = _pair(rng, domain.things)
    return _clause(domain, rng, labels[0], one), _clause(domain, rng, labels[1], two)


def _single(domain: Domain, rng: Rng, label: int) -> str:
    return _clause(domain, rng, label, _pick(rng, domain.things))


def _agreement(domain: Domain, rng: Rng, label: int) -> str:
    return ", and ".join(_clauses(domain, rng, (label, label)))


def _concession(domain: Domain, rng: Rng, label: int) -> str:
    """The main clause decides, whichever of the two comes first."""
    main, side = _clauses(domain, rng, (label, 1 - label))
    word = _pick(rng, CONCESSIONS)
    return f"{word} {side}, {main}" if rng.random() < 0.5 else f"{main}, {word} {side}"


def _contrast(domain: Domain, rng: Rng, label: int) -> str:
    side, main = _clauses(domain, rng, (1 - label, label))
    return f"{side}, {_pick(rng, CONTRASTS)} {main}"


def _expectation(domain: Domain, rng: Rng, label: int) -> str:
    thing, attitude = _pick(rng, domain.things), "feared" if label else "hoped for"
    other, got = _adjective(domain, rng, 1 - label), _adjective(domain, rng, label)
    forms = (
        f"we had {attitude} {other} {thing} and got {got} one",
        f"instead of {other} {thing} there was {got} one",
        f"it was {got} {thing} where others had seen {other} one",
    )
    return _pick(rng, forms)


def _hearsay(domain: Domain, rng: Rng, label: int) -> str:
    """Someone's opinion, shared or contradicted by the teller."""
    person, thing = _pick(rng, domain.people), _pick(rng, domain.things)
    agrees = int(rng.integers(2))
    said = _judgement(domain, rng, label if agrees else 1 - label)
    return f"the {person} found the {thing} {said}, {_pick(rng, ASSENTS if agrees else DISSENTS)}"


def sentiment(domain: Domain, rng: Rng, label: int) -> tuple[str, ...]:
    """An opinion: 0 negative, 1 positive."""
    mixed = rng.random() < MIXED
    kinds = (_concession, _contrast, _expectation, _hearsay) if mixed else (_single, _agreement)
    text = f"{_pick(rng, OPENERS)} {_pick(rng, kinds)(domain, rng, label)}"
    if rng.random() < CLOSED:
        text += f"; {_pick(rng, PRAISE if label else BLAME)}"
    return (_sentence(text),)


@dataclass(frozen=True)
class _Report:
    """What two sentences must share to mean the same."""

    agent: str
    patient: str
    verb: str
    time: str
    place: str
    negation: str = ""

    def tell(self, *, passive: int, early: int) -> str:
        """The report in words, in either voice, the time in front or behind."""
        core = f"the {self.agent} {self.negation} {self.verb} the {self.patient}"
        if passive:
            core = f"the {self.patient} was {self.negation} {self.verb} by the {self.agent}"
        front, behind = (f"{self.time},", "") if early else ("", self.time)
        return _sentence(f"{front} {core} {self.place} {behind}")


def _draw_report(domain: Domain, rng: Rng) -> tuple[_Report, tuple[str, ...], tuple[str, ...]]:
    """A report, with the other words for its verb and for its time."""
    agent, patient = _pair(rng, domain.people)
    verbs, times = _pick(rng, PERSON_VERBS), _pick(rng, TIMES)
    negation = _pick(rng, NEGATIONS) if rng.random() < NEGATED else ""
    place = _pick(rng, domain.places)
    return _Report(agent, patient, verbs[0], times[0], place, negation), verbs, times


def paraphrase(domain: Domain, rng: Rng, label: int) -> tuple[str, ...]:
    """Two reports: 0 they differ in a crucial point, 1 they mean the same.

    Both kinds change voice and wording alike; only the crucial point tells them apart.
    """
    report, verbs, times = _draw_report(domain, rng)
    passive, early = rng.integers(2, size=2).tolist()
    first = report.tell(passive=passive, early=early)
    other = replace(report, verb=_pick(rng, verbs[:2]), time=_pick(rng, times[:2]))
    if label == 0:
        negation = "" if report.negation else _pick(rng, NEGATIONS)
        turned = replace(other, agent=other.patient, patient=other.agent)
        changes = (turned, replace(other, verb=verbs[2]), replace(other, time=times[2]))
        # The exchange of roles is the hardest to see, so it is the rarest.
        which = int(rng.choice(4, p=(0.1, 0.2, 0.2, 0.5)))
        other = replace(other, negation=negation) if which == 3 else changes[which]
        if rng.random() < TWO_CHANGES:
            other = replace(other, time=times[2])
    return first, other.tell(passive=1 - passive, early=int(rng.integers(2)))


def order(domain: Domain, rng: Rng, label: int) -> tuple[str, ...]:
    """One sentence: 0 some neighbouring words have changed places, 1 natural word order."""
    if rng.random() < 0.5:
        passive, early = rng.integers(2, size=2).tolist()
        text = _draw_report(domain, rng)[0].tell(passive=passive, early=early)
    else:
        text = f"{_pick(rng, OPENERS)} {_single(domain, rng, int(rng.integers(2)))}"
    words = text.rstrip(".").split()
    words[0] = words[0] if words[0] == "I" else words[0][0].lower() + words[0][1:]
    return (_sentence(" ".join(words if label else _scramble(words, rng))),)


def _scramble(words: list[str], rng: Rng) -> list[str]:
    """Exchanges few neighbours, at function words: there an exchange is hardly ever natural."""
    words, touched = list(words), set[int]()
    starts = [at for at, word in enumerate(words[:-1]) if word in FUNCTION_WORDS]
    left = SWAPS
    for at in rng.permutation(starts or range(len(words) - 1)).tolist():
        if left and not touched & {at, at + 1}:
            words[at], words[at + 1] = words[at + 1], words[at]
            touched |= {at, at + 1}
            left -= 1
    return words
