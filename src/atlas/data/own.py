"""Clients from files of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from atlas.config.federation import ClientSettings, FederationConfig
from atlas.data.examples import read_example, text_key
from atlas.data.files import read_records
from atlas.data.partition import Key, distinct, split_client
from atlas.data.tasks import find_task
from atlas.errors import InputError
from atlas.federation.clients import ClientData, Example, Task
from atlas.runs.seeds import generator

FEWEST = 8
# How a small file is shared out: this part trains, this part validates, the rest is the test.
_TRAIN, _VALIDATION = 0.5, 0.2


@dataclass(frozen=True)
class _Draft:
    """A client whose test data, and later its validation data, is settled."""

    settings: ClientSettings
    task: Task
    rest: list[Example]
    test: list[Example]
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


def read_examples(path: Path, task: Task) -> list[Example]:
    """The different examples of a JSONL or CSV file, in order.

    Raises:
        InputError: If the file is missing, empty or malformed.
    """
    examples = [read_example(task, record, record.where) for record in read_records(path)]
    return [examples[i] for i in distinct(examples)]


def split_sizes(count: int, train: int | None, validation: int, test: int) -> tuple[int, int, int]:
    """Sizes of training, validation and test data that share out one file.

    The settings are upper bounds. Training takes up to half of a small file, validation a fifth,
    the test what is left; without a bound on training it gets what the other two leave.
    """
    bound = count if train is None else train
    half = min(bound, int(_TRAIN * count))
    fifth = max(1, min(validation, int(_VALIDATION * count)))
    tested = min(test, count - half - fifth)
    return min(bound, count - fifth - tested), fifth, tested


def _draft(
    config: FederationConfig, client: ClientSettings, registry: Mapping[str, Task]
) -> _Draft:
    task = find_task(client.task, registry, f"clients.{client.id}.task")
    path = client.data.expanduser()
    examples = read_examples(path, task)
    if len(examples) < FEWEST:
        raise InputError(
            f"clients.{client.id}.data: {path} has {len(examples)} different examples; "
            f"a client needs at least {FEWEST}"
        )
    rng = generator(config.seed, "data", client.id, "test")
    data = config.data
    if client.test_data is not None:
        test = read_examples(client.test_data.expanduser(), task)
        chosen = split_client(len(test), (min(data.test, len(test)),), rng)[0]
        return _Draft(client, task, examples, [test[i] for i in chosen.tolist()])
    tested = split_sizes(len(examples), data.train, data.validation, data.test)[2]
    sizes = (tested, len(examples) - tested)
    test_part, rest = split_client(len(examples), sizes, rng)
    return _Draft(
        client,
        task,
        [examples[i] for i in rest.tolist()],
        [examples[i] for i in test_part.tolist()],
    )


def _validate(config: FederationConfig, draft: _Draft, tested: set[Key]) -> _Draft:
    """Settles the validation data, from what no test holds."""
    rest = [draft.rest[i] for i in distinct(draft.rest, tested)]
    _check_left(draft, len(rest), least=2)
    share = _VALIDATION / (_TRAIN + _VALIDATION)
    validated = max(1, min(config.data.validation, int(share * len(rest))))
    rng = generator(config.seed, "data", draft.settings.id, "split")
    sizes = (validated, len(rest) - validated)
    validation, others = split_client(len(rest), sizes, rng)
    return replace(
        draft,
        rest=[rest[i] for i in others.tolist()],
        validation=tuple(rest[i] for i in validation.tolist()),
    )


def _finish(config: FederationConfig, draft: _Draft, held_out: set[Key]) -> ClientData:
    """Trains on what no client of the task is judged by."""
    left = [draft.rest[i] for i in distinct(draft.rest, held_out)]
    _check_left(draft, len(left), least=1)
    client = draft.settings
    return ClientData(
        id=client.id,
        task=draft.task,
        train=tuple(left[: config.data.train]),
        validation=draft.validation,
        test=tuple(draft.test),
        group=draft.task.name,
        device=client.device,
        backbone=client.backbone,
    )


def _check_left(draft: _Draft, count: int, least: int) -> None:
    if count < least:
        client = draft.settings
        raise InputError(
            f"clients.{client.id}.data: {client.data} has {count} examples that no client of task "
            f"{draft.task.name!r} is judged by; at least {least} needed"
        )
