"""Texts made up here, on which models can be compared without anybody's data."""

from __future__ import annotations

from atlas.data.lexicon import DOMAINS
from atlas.data.synthetic import MAKERS
from atlas.runs.seeds import generator


def anchor_texts(count: int, seed: int) -> tuple[str, ...]:
    """So many different texts of all synthetic kinds and domains in turn; the first of more.

    Args:
        count: How many.
        seed: The run's; everybody who is to be compared has the same texts.
    """
    rng, makers = generator(seed, "anchors"), list(MAKERS.values())
    found: dict[str, None] = {}
    while len(found) < count:
        number = len(found)
        domain = DOMAINS[int(rng.integers(len(DOMAINS)))]
        parts = makers[number % len(makers)](domain, rng, int(rng.integers(2)))
        found[" ".join(parts)] = None
    return tuple(found)
