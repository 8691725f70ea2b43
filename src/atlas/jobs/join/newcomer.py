"""Who wants to join a finished run: its id, its task and its data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from atlas.config.federation import ClientSettings, FederationConfig
from atlas.data.clients import load_clients
from atlas.data.examples import text_key
from atlas.data.files import read_file
from atlas.data.own import own_clients
from atlas.data.own_file import read_own
from atlas.errors import InputError
from atlas.federation.clients import ClientData, Task
from atlas.jobs.federation.own_data import row_warnings
from atlas.runs.files import NAME, check_name


@dataclass(frozen=True)
class Newcomer:
    """What the user says of a newcomer.

    Attributes:
        file: Its labelled examples, JSONL or CSV.
        client: Its id; None: the file's stem.
        task: Its task; None: the task of the run that the file fits.
        train: Most training examples; None: as the run's settings say.
    """

    file: Path
    client: str | None = None
    task: str | None = None
    train: int | None = None


def choose_id(asked: Newcomer, taken: Collection[str]) -> str:
    """The newcomer's id.

    Args:
        asked: What the user says.
        taken: Ids that the run has already.

    Raises:
        InputError: If there is none that is allowed and free.
    """
    name = asked.file.stem if asked.client is None else asked.client
    if asked.client is None and not NAME.fullmatch(name):
        raise InputError(
            f"--client: not given, and the name of {asked.file} is no client id; "
            "allowed: 1 to 64 letters, digits, - or _"
        )
    check_name(name, "--client")
    if name in taken:
        raise InputError(
            f"--client {name}: the run has a client of this id; choose an id other than "
            f"{', '.join(sorted(taken))}"
        )
    return name


def choose_task(asked: Newcomer, own: Mapping[str, Task], known: Mapping[str, Task]) -> Task:
    """The task that was named, or the only one of the run that every record fits.

    Args:
        asked: What the user says.
        own: The run's tasks by name.
        known: All tasks that there are.

    Raises:
        InputError: If there is no such task, or not exactly one fits.
    """
    if asked.task is not None:
        found = own.get(asked.task) or known.get(asked.task)
        if found is None:
            others = ", ".join(sorted(set(known) - set(own))) or "none"
            raise InputError(
                f"--task {asked.task}: no such task; tasks of the run: {', '.join(sorted(own))}; "
                f"other tasks: {others}"
            )
        return found
    if len(own) == 1:
        return next(iter(own.values()))
    reasons = {name: _misfit(asked.file, task) for name, task in sorted(own.items())}
    fitting = [name for name, reason in reasons.items() if reason is None]
    if len(fitting) == 1:
        return own[fitting[0]]
    if fitting:
        raise InputError(
            f"{asked.file}: fits several tasks of the run: {', '.join(fitting)}; "
            "name one of them with --task"
        )
    told = "\n".join(f"  {name}: {reason}" for name, reason in reasons.items())
    raise InputError(f"{asked.file}: fits no task of the run; name its task with --task\n{told}")


def _misfit(file: Path, task: Task) -> str | None:
    """Why a file is not one of this task; None if every record fits."""
    read_file(file)  # a file that nobody can read is no misfit
    try:
        read_own(file, task)
    except InputError as error:
        return str(error)
    return None


def newcomer_config(
    config: FederationConfig, asked: Newcomer, client: str, task: Task
) -> FederationConfig:
    """The run's settings for the newcomer alone; its rank is the common one."""
    train = asked.train or config.data.trains.get(task.name, config.data.train)
    entry = ClientSettings(id=client, task=task.name, data=asked.file)
    return config.model_copy(
        update={
            "clients": [entry],
            "data": config.data.model_copy(update={"train": train}),
            "adapter": config.adapter.model_copy(update={"ranks": {}}),
        }
    )


def read_newcomer(
    config: FederationConfig, run: FederationConfig, task: Task
) -> tuple[ClientData, list[str]]:
    """The newcomer's examples, split as those of any client with a file of its own.

    A text that clients of the task have trained on or chosen by would flatter what they hand on,
    so it is no test text.

    Args:
        config: Settings from `newcomer_config`.
        run: The run's own settings.
        task: The newcomer's task.

    Returns:
        The newcomer, and what its user should know.

    Raises:
        InputError: If the file is bad or too small.
    """
    data = own_clients(config, {task.name: task})[0]
    notes = row_warnings(data)
    try:
        others = [client for client in load_clients(run) if client.task.name == task.name]
    except InputError as error:
        return data, [
            *notes,
            f"test texts may be known to the run, whose data cannot be read: {error}",
        ]
    seen = {text_key(e) for other in others for e in (*other.train, *other.validation)}
    fresh = tuple(example for example in data.test if text_key(example) not in seen)
    known = len(data.test) - len(fresh)
    file = config.clients[0].data
    if not fresh:
        raise InputError(
            f"{file}: all {known} test examples are among what the run's clients trained on"
        )
    told = (
        f"{known} test examples left out: the run's clients of task {task.name!r} trained on them"
    )
    return replace(data, test=fresh), [*notes, told] if known else notes
