"""Clients with planted groups: three tasks, each told in the words of several domains.

Each task has domains of its own, as reviews are about other things than news. All its clients need
the same knowledge, and each has a home domain from which more of its texts come: clients of one
task are alike and not the same. Learning from them pays, learning from the others does not.

`data.difference` turns alike clients into different ones: with 0 every client has both labels
equally often, with 1 they are as uneven as they get, for the first client one way, for the last the
other, while texts tell nothing of whose they are. Test data is as the training data is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from atlas.config.federation import DataSettings
from atlas.data.dealing import check_names
from atlas.data.examples import known_size, text_key
from atlas.data.grammar import order, paraphrase, sentiment
from atlas.data.lexicon import DOMAINS, Domain
from atlas.data.tasks import SYNTHETIC, find_task
from atlas.errors import InputError
from atlas.federation.clients import ClientData, Example, Task
from atlas.runs.seeds import generator

Maker = Callable[[Domain, np.random.Generator, int], tuple[str, ...]]
MAKERS: dict[str, Maker] = {"sentiment": sentiment, "paraphrase": paraphrase, "order": order}

# The share of a client's texts that are about its home domain for certain.
AT_HOME = 0.15
# How far the label shares of the first and the last client are from a half, at most.
UNEVEN = 0.45
# Templates have no end, so `train: null` (all there is) needs a number here.
ALL = 500
# A text space counts as used up when this many draws per wanted example gave too few new texts.
_PATIENCE = 20


def synthetic_clients(settings: DataSettings, seed: int) -> list[ClientData]:
    """All clients of the synthetic tasks, `<task>-1` and so on.

    Clients of one task have different home domains; beyond as many clients as its domains these
    are used again, with other texts. Every split holds both labels equally often, before the noise
    and without `difference`.

    Args:
        settings: Tasks, clients per task, sizes and the share of flipped training labels.
        seed: The seed of the run.

    Raises:
        InputError: If a task is not synthetic or more texts are wanted than can be made.
    """
    if settings.partition.method != "iid":
        raise InputError(
            f"data.partition.method: {settings.partition.method!r} given, but synthetic clients "
            "already differ by their domains; allowed: iid"
        )
    tasks = settings.tasks or list(SYNTHETIC)
    check_names("data.clients_of", settings.clients_of, tasks)
    clients = []
    for name in tasks:
        task = find_task(name, SYNTHETIC, "data.tasks (data.source: synthetic)")
        world = task_domains(name, seed)
        seen: set[tuple[str, ...]] = set()
        for number in range(1, settings.client_count(name) + 1):
            clients.append(_client(task, world, number, settings, seed, seen))
    return clients


def task_domains(task: str, seed: int) -> list[Domain]:
    """What a task's texts are about; two tasks share no domain, whichever of them take part."""
    drawn = generator(seed, "data", "domains").permutation(len(DOMAINS)).tolist()
    place = sorted(SYNTHETIC).index(task)
    return [DOMAINS[which] for which in drawn[place :: len(SYNTHETIC)]]


def _client(  # noqa: PLR0913
    task: Task,
    world: list[Domain],
    number: int,
    settings: DataSettings,
    seed: int,
    seen: set[tuple[str, ...]],
) -> ClientData:
    """One client; no text occurs twice among the clients of a task."""
    held_out = (known_size(settings.validation, "validation"), known_size(settings.test, "test"))
    sizes = (settings.train or ALL, *held_out)
    rng = generator(seed, "data", task.name, number)
    # Its home domain comes before the others of the task's world.
    start = (number - 1) % len(world)
    own = world[start:] + world[:start]
    positive = 0.5 + UNEVEN * settings.difference * _place(number, settings.client_count(task.name))
    splits = [_draw(task, own, size, rng, seen, positive) for size in sizes]
    noise = generator(seed, "data", task.name, number, "noise")
    return ClientData(
        id=f"{task.name}-{number}",
        task=task,
        train=flip_labels(splits[0], settings.noise, noise),
        validation=tuple(splits[1]),
        test=tuple(splits[2]),
        group=task.name,
    )


def _place(number: int, count: int) -> float:
    """Where a client stands among those of its task, from -1 to 1; alone in the middle."""
    return 2.0 * (number - 1) / (count - 1) - 1.0 if count > 1 else 0.0


def spread_labels(size: int, positive: float) -> NDArray[np.int64]:
    """Labels 0 and 1, a share of them 1, as evenly spread as whole numbers allow [size]."""
    reached = np.floor(np.arange(size + 1) * positive).astype(np.int64)
    labels: NDArray[np.int64] = np.diff(reached)
    return labels


def _draw(  # noqa: PLR0913
    task: Task,
    domains: list[Domain],
    size: int,
    rng: np.random.Generator,
    seen: set[tuple[str, ...]],
    positive: float,
) -> list[Example]:
    """New examples, a share `positive` of the second label, none of which was seen."""
    labels = rng.permutation(spread_labels(size, positive)).tolist()
    examples: list[Example] = []
    for _ in range(_PATIENCE * size):
        if len(examples) == size:
            break
        label = labels[len(examples)]
        abroad = domains[int(rng.integers(len(domains)))]
        domain = domains[0] if rng.random() < AT_HOME else abroad
        example = Example(MAKERS[task.name](domain, rng, label), label)
        if text_key(example) not in seen:
            seen.add(text_key(example))
            examples.append(example)
    if len(examples) < size:
        raise InputError(
            f"data: synthetic task {task.name!r} has only about {len(seen)} different texts, and "
            f"{size} more were wanted; lower data.train, data.test or data.clients_per_task"
        )
    return examples


def flip_labels(
    examples: list[Example], share: float, rng: np.random.Generator
) -> tuple[Example, ...]:
    """The examples, a share of them (rounded) with the other of two labels."""
    flipped = set(rng.permutation(len(examples))[: round(share * len(examples))].tolist())
    return tuple(
        replace(example, label=1 - example.label) if index in flipped else example
        for index, example in enumerate(examples)
    )
