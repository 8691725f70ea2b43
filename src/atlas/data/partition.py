"""How one task's examples are dealt to its clients: pure functions on indices.

Every method is a matrix of weights [clients, strata], and one `deal` serves them all: a stratum
is a label, a value of a field, or everything at once. The weights that dealt a client's training
data deal its test data too, so that a client is tested on what it is about.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from atlas.data.examples import text_key
from atlas.errors import InputError
from atlas.federation.clients import Example

Indices = NDArray[np.int64]
Weights = NDArray[np.float64]
Key = tuple[str, ...]

# With a small concentration a share can underflow to nothing; a client must still be able to go on
# when all labels it prefers have run out.
_LEAST = 1e-12


def iid_weights(clients: int) -> Weights:
    """One stratum, to which all clients have the same right."""
    return np.ones((clients, 1))


def dirichlet_weights(clients: int, labels: int, alpha: float, rng: np.random.Generator) -> Weights:
    """Label shares of each client, drawn from a symmetric Dirichlet distribution.

    Clients stay equal in size and differ in their labels: the smaller `alpha`, the more.
    """
    return np.maximum(rng.dirichlet(np.full(labels, alpha), size=clients), _LEAST)


def field_weights(values: Sequence[str], clients: int, key: str) -> tuple[list[str], Weights]:
    """Each distinct value belongs to one client; sorted values go round the clients.

    Args:
        values: One value per training example.
        clients: How many clients there are.
        key: What the values are, for the message.

    Returns:
        The distinct values in order, and who owns them [clients, values].

    Raises:
        InputError: If there are fewer distinct values than clients.
    """
    names = sorted(set(values))
    if len(names) < clients:
        some = ", ".join(repr(name) for name in names[:5])
        raise InputError(
            f"{key}: {len(names)} distinct values ({some}) for {clients} clients; "
            "every client needs one of its own"
        )
    weights = np.zeros((clients, len(names)))
    weights[np.arange(len(names)) % clients, np.arange(len(names))] = 1.0
    return names, weights


def deal(
    strata: Sequence[int], weights: Weights, wanted: int | None, rng: np.random.Generator
) -> list[Indices]:
    """Deals examples to clients in turns, one example each, without putting any back.

    At its turn a client draws a stratum by its weights among those that still hold examples. So
    clients whose weights are positive everywhere end with sizes that differ by one at most, and
    every client gets something as long as there are as many examples as clients.

    Args:
        strata: The stratum of each example; a negative one is dealt to nobody.
        weights: Each client's weights of the strata [clients, strata].
        wanted: Examples per client; None deals everything.
        rng: Decides the examples, the draws and who begins.

    Returns:
        Disjoint indices per client; fewer than wanted where its strata ran out.
    """
    of_stratum = np.asarray(strata, dtype=np.int64)
    piles = [
        rng.permutation(np.flatnonzero(of_stratum == s)).tolist() for s in range(weights.shape[1])
    ]
    limit = len(of_stratum) if wanted is None else wanted
    left = np.array([float(len(pile) > 0) for pile in piles])
    hands: list[list[int]] = [[] for _ in weights]
    turns = rng.permutation(len(weights)).tolist()
    while turns:
        turns = [client for client in turns if len(hands[client]) < limit]
        for client in list(turns):
            shares = np.cumsum(weights[client] * left)
            if shares[-1] <= 0:
                turns.remove(client)
                continue
            stratum = int(np.searchsorted(shares, rng.random() * shares[-1], side="right"))
            hands[client].append(piles[stratum].pop())
            left[stratum] = float(len(piles[stratum]) > 0)
    return [np.array(hand, dtype=np.int64) for hand in hands]


def split_client(count: int, sizes: Sequence[int], rng: np.random.Generator) -> list[Indices]:
    """Disjoint random parts of `range(count)`, of the given sizes.

    Raises:
        InputError: If there are fewer than the sizes ask for.
    """
    if sum(sizes) > count:
        raise InputError(f"{count} examples cannot be split into parts of {list(sizes)}")
    shuffled = rng.permutation(count)
    ends = np.cumsum(sizes)
    return [shuffled[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def distinct(examples: Sequence[Example], taken: Collection[Key] = frozenset()) -> list[int]:
    """The first of each text, without the texts that are taken.

    Texts are compared without case and spacing. Whatever is dealt or split afterwards shares no
    text, since no text is there twice; test texts are `taken` from the training pool.
    """
    seen = set(taken)
    kept = []
    for index, example in enumerate(examples):
        key = text_key(example)
        if key not in seen:
            seen.add(key)
            kept.append(index)
    return kept
