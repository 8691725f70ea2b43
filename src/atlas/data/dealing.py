"""Clients made by dealing the examples of whole tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from atlas.config.federation import DataSettings, PartitionSettings
from atlas.config.messages import show
from atlas.data.examples import Record, Source, known_size, read_example, text_key
from atlas.data.partition import (
    Indices,
    Weights,
    deal,
    dirichlet_weights,
    distinct,
    field_weights,
    iid_weights,
    split_client,
)
from atlas.errors import InputError
from atlas.federation.clients import ClientData, Example, Task
from atlas.runs.seeds import generator


@dataclass(frozen=True)
class _Pool:
    """Examples of one split, and the records they were read from."""

    records: list[Record]
    examples: list[Example]

    def only(self, kept: Sequence[int]) -> _Pool:
        return _Pool([self.records[i] for i in kept], [self.examples[i] for i in kept])

    def plus(self, other: _Pool) -> _Pool:
        return _Pool(self.records + other.records, self.examples + other.examples)

    def pick(self, indices: Indices) -> tuple[Example, ...]:
        return tuple(self.examples[i] for i in indices.tolist())


@dataclass(frozen=True)
class _Terms:
    """How one task is dealt, with the keys that say so, for the messages."""

    clients: int
    partition: PartitionSettings
    partition_key: str
    train: int | None
    train_key: str
    validation: int
    test: int
    tests: str


def dealt_clients(
    source: Source, task: Task, settings: DataSettings, seed: int
) -> list[ClientData]:
    """The clients of one task, `<task>-1` and so on.

    The training split is dealt by the partition and each client's share is split into training
    and validation; the test split is dealt in the same proportions. No text is dealt twice, but
    for test texts where `data.tests` is not `apart`, and training texts that also occur in the
    test split are left out. No text that anyone trains or validates on is ever a test text.

    Raises:
        InputError: If records are bad or too few, or settings of single tasks name another task.
    """
    terms = _terms(task, settings)
    test = _read(source, task, "test")
    test = test.only(distinct(test.examples))
    train = _read(source, task, "train")
    train = train.only(distinct(train.examples, {text_key(e) for e in test.examples}))
    rng = generator(seed, "data", task.name, "partition")
    strata, test_strata, weights = _partition(task, train, test, terms, rng)
    wanted = None if terms.train is None else terms.train + terms.validation
    shares = deal(strata, weights, wanted, generator(seed, "data", task.name, "train"))
    if terms.tests == "unseen":
        left = _left_over(shares, len(strata))
        test = test.plus(train.only(left))
        test_strata = [*test_strata, *(strata[i] for i in left)]
    tests = _deal_tests(terms, test_strata, weights, generator(seed, "data", task.name, "test"))
    _check_sizes(task, terms, shares, len(strata))
    _check_tests(task, terms, tests, len(test_strata))
    clients = []
    for number, (share, own_test) in enumerate(zip(shares, tests, strict=True), start=1):
        sizes = (terms.validation, len(share) - terms.validation)
        order = generator(seed, "data", task.name, number, "split")
        validation, fit = split_client(len(share), sizes, order)
        clients.append(
            ClientData(
                id=f"{task.name}-{number}",
                task=task,
                train=train.pick(share[fit]),
                validation=train.pick(share[validation]),
                test=test.pick(own_test),
                group=task.name,
            )
        )
    return clients


def _terms(task: Task, settings: DataSettings) -> _Terms:
    """What holds for one task: its own settings over those of all tasks."""
    name, partitions, trains = task.name, settings.partitions, settings.trains
    check_names("data.partitions", partitions, settings.tasks)
    check_names("data.trains", trains, settings.tasks)
    check_names("data.clients_of", settings.clients_of, settings.tasks)
    return _Terms(
        clients=settings.client_count(name),
        partition=partitions.get(name, settings.partition),
        partition_key=f"data.partitions.{name}" if name in partitions else "data.partition",
        train=trains.get(name, settings.train),
        train_key=f"data.trains.{name}" if name in trains else "data.train",
        validation=known_size(settings.validation, "validation"),
        test=known_size(settings.test, "test"),
        tests=settings.tests,
    )


def check_names(key: str, given: Collection[str], tasks: Sequence[str]) -> None:
    """A setting of a task that takes no part would go unheard."""
    for name in given:
        if name not in tasks:
            raise InputError(
                f"{key}.{name}: {show(name)} is not among data.tasks; allowed: {', '.join(tasks)}"
            )


def _read(source: Source, task: Task, split: str) -> _Pool:
    records = list(source.records(task, split))
    return _Pool(records, [read_example(task, record, record.where) for record in records])


def _partition(
    task: Task, train: _Pool, test: _Pool, terms: _Terms, rng: np.random.Generator
) -> tuple[list[int], list[int], Weights]:
    """The stratum of every training and test example, and the clients' weights."""
    partition, method, clients = terms.partition, terms.partition.method, terms.clients
    if method == "iid":
        return [0] * len(train.examples), [0] * len(test.examples), iid_weights(clients)
    if method == "dirichlet":
        if task.kind != "classification":
            raise InputError(
                f"{terms.partition_key}.method: dirichlet deals by label, but task {task.name!r} "
                "has no label set; allowed: iid, field"
            )
        weights = dirichlet_weights(clients, len(task.labels), partition.alpha, rng)
        return [e.label for e in train.examples], [e.label for e in test.examples], weights
    values = _values(terms, train)
    key = f"{terms.partition_key}.field {partition.field!r} of task {task.name!r}"
    names, weights = field_weights(values, clients, key)
    number = {name: index for index, name in enumerate(names)}
    others = _values(terms, test)
    return [number[v] for v in values], [number.get(v, -1) for v in others], weights


def _left_over(shares: Sequence[Indices], total: int) -> list[int]:
    """Training examples that no client holds."""
    held = {i for share in shares for i in share.tolist()}
    return [i for i in range(total) if i not in held]


def _deal_tests(
    terms: _Terms, strata: Sequence[int], weights: Weights, rng: np.random.Generator
) -> list[Indices]:
    """The test examples of each client, from one pile for all or from a whole one each."""
    if terms.tests == "apart":
        return deal(strata, weights, terms.test, rng)
    return [deal(strata, own[None], terms.test, rng)[0] for own in weights]


def _values(terms: _Terms, pool: _Pool) -> list[str]:
    field, key = terms.partition.field, f"{terms.partition_key}.field"
    if field is None:
        raise InputError(f"{key}: not set, but method `field` deals by it")
    values = []
    for record in pool.records:
        value = record.get(field)
        if not isinstance(value, str | int):
            raise InputError(
                f"{record.where}: {key} {field!r} must hold text or a whole number, got "
                f"{show(value)}; fields there: {', '.join(sorted(record))}"
            )
        values.append(str(value))
    return values


def _check_sizes(task: Task, terms: _Terms, shares: Sequence[Indices], total: int) -> None:
    needed = terms.validation + (terms.train or 1)
    for number, share in enumerate(shares, start=1):
        if len(share) < needed:
            raise InputError(
                f"{terms.train_key} {terms.train or 'null'}, data.validation {terms.validation}: "
                f"client {task.name}-{number} needs {needed} training examples and gets "
                f"{len(share)}; task {task.name!r} has {total} different ones for {len(shares)} "
                "clients"
            )


def _check_tests(task: Task, terms: _Terms, tests: Sequence[Indices], total: int) -> None:
    whose = f"{len(tests)} clients" if terms.tests == "apart" else "each of the clients"
    for number, share in enumerate(tests, start=1):
        if len(share) < terms.test:
            raise InputError(
                f"data.test {terms.test}: client {task.name}-{number} gets {len(share)} test "
                f"examples; task {task.name!r} has {total} different ones for {whose}"
            )
