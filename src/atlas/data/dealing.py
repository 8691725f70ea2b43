"""Clients made by dealing the examples of whole tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atlas.config.explain import show
from atlas.config.models import DataSettings, PartitionSettings
from atlas.data.examples import read_example, text_key
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
from atlas.data.source import Record, Source
from atlas.errors import InputError
from atlas.federation.task import ClientData, Example, Task
from atlas.runs.seeds import generator


@dataclass(frozen=True)
class _Pool:
    """Examples of one split, and the records they were read from."""

    records: list[Record]
    examples: list[Example]

    def only(self, kept: Sequence[int]) -> _Pool:
        return _Pool([self.records[i] for i in kept], [self.examples[i] for i in kept])

    def pick(self, indices: Indices) -> tuple[Example, ...]:
        return tuple(self.examples[i] for i in indices.tolist())


def dealt_clients(
    source: Source, task: Task, settings: DataSettings, seed: int
) -> list[ClientData]:
    """The clients of one task, `<task>-1` and so on.

    The training split is dealt by the partition and each client's share is split into training
    and validation; the test split is dealt in the same proportions. No text is dealt twice, and
    training texts that also occur in the test split are left out.

    Raises:
        InputError: If records are bad or too few.
    """
    test = _read(source, task, "test")
    test = test.only(distinct(test.examples))
    train = _read(source, task, "train")
    train = train.only(distinct(train.examples, {text_key(e) for e in test.examples}))
    rng = generator(seed, "data", task.name, "partition")
    strata, test_strata, weights = _partition(task, train, test, settings, rng)
    wanted = None if settings.train is None else settings.train + settings.validation
    shares = deal(strata, weights, wanted, generator(seed, "data", task.name, "train"))
    tests = deal(test_strata, weights, settings.test, generator(seed, "data", task.name, "test"))
    _check_sizes(task, settings, shares, len(strata))
    _check_tests(task, settings, tests, len(test_strata))
    clients = []
    for number, (share, own_test) in enumerate(zip(shares, tests, strict=True), start=1):
        sizes = (settings.validation, len(share) - settings.validation)
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


def _read(source: Source, task: Task, split: str) -> _Pool:
    records = list(source.records(task, split))
    return _Pool(records, [read_example(task, record, record.where) for record in records])


def _partition(
    task: Task, train: _Pool, test: _Pool, settings: DataSettings, rng: np.random.Generator
) -> tuple[list[int], list[int], Weights]:
    """The stratum of every training and test example, and the clients' weights."""
    method, clients = settings.partition.method, settings.clients_per_task
    if method == "iid":
        return [0] * len(train.examples), [0] * len(test.examples), iid_weights(clients)
    if method == "dirichlet":
        if task.kind != "classification":
            raise InputError(
                f"data.partition.method: dirichlet deals by label, but task {task.name!r} has no "
                "label set; allowed: iid, field"
            )
        weights = dirichlet_weights(clients, len(task.labels), settings.partition.alpha, rng)
        return [e.label for e in train.examples], [e.label for e in test.examples], weights
    values = _values(settings.partition, train)
    key = f"data.partition.field {settings.partition.field!r} of task {task.name!r}"
    names, weights = field_weights(values, clients, key)
    number = {name: index for index, name in enumerate(names)}
    others = _values(settings.partition, test)
    return [number[v] for v in values], [number.get(v, -1) for v in others], weights


def _values(settings: PartitionSettings, pool: _Pool) -> list[str]:
    field = settings.field
    if field is None:
        raise InputError("data.partition.field: not set, but method `field` deals by it")
    values = []
    for record in pool.records:
        value = record.get(field)
        if not isinstance(value, str | int):
            raise InputError(
                f"{record.where}: data.partition.field {field!r} must hold text or a whole number, "
                f"got {show(value)}; fields there: {', '.join(sorted(record))}"
            )
        values.append(str(value))
    return values


def _check_sizes(task: Task, settings: DataSettings, shares: Sequence[Indices], total: int) -> None:
    needed = settings.validation + (settings.train or 1)
    for number, share in enumerate(shares, start=1):
        if len(share) < needed:
            raise InputError(
                f"data.train {settings.train or 'null'}, data.validation {settings.validation}: "
                f"client {task.name}-{number} needs {needed} training examples and gets "
                f"{len(share)}; task {task.name!r} has {total} different ones for {len(shares)} "
                "clients"
            )


def _check_tests(task: Task, settings: DataSettings, tests: Sequence[Indices], total: int) -> None:
    for number, share in enumerate(tests, start=1):
        if len(share) < settings.test:
            raise InputError(
                f"data.test {settings.test}: client {task.name}-{number} gets {len(share)} test "
                f"examples; task {task.name!r} has {total} different ones for {len(tests)} clients"
            )
