"""Clients from files of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from atlas.config.federation import ClientSettings, FederationConfig, ShareSettings
from atlas.data.examples import text_key
from atlas.data.own_file import read_own
from atlas.data.partition import Key, distinct, split_client
from atlas.data.tasks import find_task
from atlas.errors import InputError
from atlas.federation.clients import ClientData, Example, RowCounts, Task
from atlas.runs.seeds import generator

FEWEST = 8
SHARES = ShareSettings()


@dataclass(frozen=True)
class _Draft:
    """A client whose test data, and later its validation data, is settled."""

    settings: ClientSettings
    task: Task
    rest: list[Example]
    test: list[Example]
    counts: RowCounts
    validation: tuple[Example, ...] = ()


def own_clients(config: FederationConfig, registry: Mapping[str, Task]) -> list[ClientData]:
    """The clients of the settings' `clients` list.

    All tests are settled first, then all validation data, so that a text in either of them is
    in no training data of any client of the task, and no test text is validated on.

    Raises:
        InputError: If a task is unknown, or a file bad or too small.
    """
    drafts = [_draft(config, client, registry) for client in config.clients]
    tests: dict[str, set[Key]] = {}
    for draft in drafts:
        tests.setdefault(draft.task.name, set()).update(text_key(e) for e in draft.test)
    judged = [_validate(config, draft, tests[draft.task.name]) for draft in drafts]
    held_out = {task: set(keys) for task, keys in tests.items()}
    for draft in judged:
        held_out[draft.task.name].update(text_key(e) for e in draft.validation)
    return [_finish(config, draft, held_out[draft.task.name]) for draft in judged]


def split_sizes(
    count: int,
    train: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    shares: ShareSettings = SHARES,
) -> tuple[int, int, int]:
    """Sizes of training, validation and test data that share out one file.

    The sizes of the settings are upper bounds. Within them training and validation take their
    shares, the test what is left; without a bound on training it gets what the other two leave.
    """
    bound = count if train is None else train
    trained = min(bound, max(1, int(shares.train * count)))
    validated = max(1, min(_most(validation, count), int(shares.validation * count)))
    tested = min(_most(test, count), max(1, count - trained - validated))
    return min(bound, count - validated - tested), validated, tested


def _most(bound: int | None, count: int) -> int:
    return count if bound is None else bound


def _draft(
    config: FederationConfig, client: ClientSettings, registry: Mapping[str, Task]
) -> _Draft:
    task = find_task(client.task, registry, f"clients.{client.id}.task")
    if client.data is None:
        raise InputError(
            f"clients.{client.id}.data: null, but the client is not on a node of its own; allowed: "
            "a JSONL or CSV file"
        )
    path = client.data.expanduser()
    own = read_own(path, task)
    examples = own.examples
    if len(examples) < FEWEST:
        told = "".join(f"; {note}" for note in own.counts.notes)
        raise InputError(
            f"clients.{client.id}.data: {path} has {len(examples)} different examples; "
            f"a client needs at least {FEWEST}{told}"
        )
    rng = generator(config.seed, "data", client.id, "test")
    data = config.data
    if client.test_data is not None:
        return _tested_apart(client, task, examples, own.counts, data.test, rng)
    tested = split_sizes(len(examples), data.train, data.validation, data.test, data.shares)[2]
    sizes = (tested, len(examples) - tested)
    test_part, rest = split_client(len(examples), sizes, rng)
    return _Draft(
        client,
        task,
        [examples[i] for i in rest.tolist()],
        [examples[i] for i in test_part.tolist()],
        own.counts,
    )


def _tested_apart(  # noqa: PLR0913
    client: ClientSettings,
    task: Task,
    examples: list[Example],
    counts: RowCounts,
    bound: int | None,
    rng: np.random.Generator,
) -> _Draft:
    """A client with a test file of its own; its other file is for training and validation."""
    assert client.test_data is not None
    path = client.test_data.expanduser()
    test = read_own(path, task)
    if not test.examples:
        told = "".join(f"; {note}" for note in test.counts.notes)
        raise InputError(f"clients.{client.id}.test_data: {path} has no example to test by{told}")
    size = min(_most(bound, len(test.examples)), len(test.examples))
    chosen = split_client(len(test.examples), (size,), rng)[0]
    both = _beyond(counts.plus(test.counts), len(test.examples) - size)
    return _Draft(client, task, examples, [test.examples[i] for i in chosen.tolist()], both)


def _validate(config: FederationConfig, draft: _Draft, tested: set[Key]) -> _Draft:
    """Settles the validation data, from what no test holds."""
    rest = [draft.rest[i] for i in distinct(draft.rest, tested)]
    _check_left(draft, len(rest), least=2)
    shares = config.data.shares
    share = shares.validation / (shares.train + shares.validation)
    bound = _most(config.data.validation, len(rest))
    validated = max(1, min(bound, int(share * len(rest))))
    rng = generator(config.seed, "data", draft.settings.id, "split")
    sizes = (validated, len(rest) - validated)
    validation, others = split_client(len(rest), sizes, rng)
    return replace(
        draft,
        rest=[rest[i] for i in others.tolist()],
        validation=tuple(rest[i] for i in validation.tolist()),
        counts=_judged(draft, len(rest)),
    )


def _finish(config: FederationConfig, draft: _Draft, held_out: set[Key]) -> ClientData:
    """Trains on what no client of the task is judged by."""
    left = [draft.rest[i] for i in distinct(draft.rest, held_out)]
    _check_left(draft, len(left), least=1)
    client, train = draft.settings, tuple(left[: config.data.train])
    return ClientData(
        id=client.id,
        task=draft.task,
        train=train,
        validation=draft.validation,
        test=tuple(draft.test),
        group=draft.task.name,
        device=client.device,
        backbone=client.backbone,
        counts=_beyond(_judged(draft, len(left)), len(left) - len(train)),
    )


def _judged(draft: _Draft, left: int) -> RowCounts:
    """The counts once those are gone whose text somebody is judged by."""
    gone = len(draft.rest) - left
    return replace(draft.counts, judged=draft.counts.judged + gone)


def _beyond(counts: RowCounts, rows: int) -> RowCounts:
    """The counts with so many more rows beyond the settings' sizes."""
    return replace(counts, beyond=counts.beyond + rows)


def _check_left(draft: _Draft, count: int, least: int) -> None:
    if count < least:
        client = draft.settings
        raise InputError(
            f"clients.{client.id}.data: {client.data} has {count} examples that no client of task "
            f"{draft.task.name!r} is judged by; at least {least} needed"
        )
