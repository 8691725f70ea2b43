"""The registry of tasks: the built-in ones and those of the user."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping, Sequence

from atlas.config.federation import TaskSettings
from atlas.config.messages import nearest
from atlas.errors import InputError
from atlas.federation.clients import Task
from atlas.ops.metrics import CLASS_METRICS, TEXT_METRICS

# Clients are named after their task, and a client's name must be fit for a folder.
TASK_NAME = r"[A-Za-z0-9_-]{1,48}"


def _classes(name: str, text: str, labels: str, metric: str = "accuracy") -> Task:
    return Task(
        name=name,
        kind="classification",
        text=tuple(text.split()),
        label="label",
        labels=tuple(labels.split()),
        metric=metric,
    )


SYNTHETIC: dict[str, Task] = {
    task.name: task
    for task in (
        _classes("sentiment", "sentence", "negative positive"),
        _classes("paraphrase", "sentence1 sentence2", "different same"),
        _classes("order", "sentence", "scrambled natural"),
    )
}

# Prompts end in a line break, so that an answer starts a line and needs no leading space whatever
# the tokenizer; what the answer needs most stands last, for prompts are cut from the left.
BENCHMARKS: dict[str, Task] = {
    task.name: task
    for task in (
        _classes("sst2", "sentence", "negative positive"),
        _classes("mrpc", "sentence1 sentence2", "not_equivalent equivalent", "balanced_accuracy"),
        _classes("cola", "sentence", "unacceptable acceptable", "matthews"),
        _classes("qnli", "question sentence", "entailment not_entailment"),
        _classes("rte", "sentence1 sentence2", "entailment not_entailment"),
        _classes("mnli", "premise hypothesis", "entailment neutral contradiction"),
        Task(
            name="mnli-choice",
            kind="causal",
            text=("premise", "hypothesis"),
            label="label",
            labels=("yes", "maybe", "no"),  # one token each for most tokenizers: none is favoured
            prompt="Premise: {premise}\nHypothesis: {hypothesis}\n"
            "Does the premise imply the hypothesis? yes, maybe or no\nAnswer:\n",
            folder="mnli",
        ),
        Task(
            name="csqa",
            kind="causal",
            text=("question",),
            label="label",
            prompt="Question: {question}\nAnswer:\n",
            choices="choices",
        ),
        Task(
            name="squad",
            kind="causal",
            text=("context", "question"),
            label="answer",
            metric="token_f1",
            prompt="{context}\nQuestion: {question}\nAnswer:\n",
            max_new_tokens=16,  # nearly all answers have fewer
        ),
        Task(
            name="gsm8k",
            kind="causal",
            text=("question",),
            label="answer",
            metric="exact_match",
            prompt="Question: {question}\nAnswer:\n",
            answer_marker="####",
        ),
    )
}

TASKS: dict[str, Task] = {**BENCHMARKS, **SYNTHETIC}


def register_task(task: Task) -> Task:
    """Make a task known by its name; a name can be taken once."""
    if task.name in TASKS:
        raise ValueError(f"task {task.name!r} is registered twice")
    TASKS[task.name] = task
    return task


def task_registry(user: Mapping[str, TaskSettings]) -> dict[str, Task]:
    """The built-in tasks and the user's own.

    Args:
        user: The `tasks` of the settings, by name.

    Raises:
        InputError: If a name is taken or a task cannot work as described.
    """
    registry = dict(TASKS)
    for name, settings in user.items():
        if not re.fullmatch(TASK_NAME, name):
            raise InputError(
                f"tasks: {name!r} is no name; allowed: letters, digits, - and _, to 48"
            )
        if name in registry:
            raise InputError(f"tasks.{name}: this name is built in; choose another name")
        registry[name] = _user_task(name, settings)
    return registry


def find_task(name: str, known: Mapping[str, Task], key: str) -> Task:
    """The task of that name.

    Args:
        name: What the user wrote.
        known: What may be written.
        key: The setting in which it was written, for the message.

    Raises:
        InputError: If there is no such task; names the nearest one.
    """
    if name in known:
        return known[name]
    guess = nearest(name, known)
    hint = f"did you mean {guess!r}? " if guess else ""
    raise InputError(f"{key}: no task {name!r}; {hint}tasks: {', '.join(sorted(known))}")


def _user_task(name: str, settings: TaskSettings) -> Task:
    key = f"tasks.{name}"
    if settings.kind == "classification":
        _check_classes(key, settings)
    else:
        _check_causal(key, settings)
    return Task(
        name=name,
        kind=settings.kind,
        text=tuple(settings.text),
        label=settings.label,
        labels=tuple(settings.labels),
        metric=settings.metric,
        prompt=settings.prompt,
        choices=settings.choices,
        answer_marker=settings.answer_marker,
        max_new_tokens=settings.max_new_tokens,
    )


def _check_classes(key: str, settings: TaskSettings) -> None:
    _check_labels(key, settings.labels, "a classification task")
    if len(settings.text) > 2:
        raise InputError(
            f"{key}.text: a classification task reads one or two fields, not {len(settings.text)}"
        )
    for field in ("prompt", "choices", "answer_marker"):
        if getattr(settings, field):
            raise InputError(f"{key}.{field}: only causal tasks have it; set kind: causal")
    _check_metric(key, settings.metric, CLASS_METRICS)


def _check_labels(key: str, labels: Sequence[str], whose: str) -> None:
    if len(labels) < 2:
        raise InputError(
            f"{key}.labels: {whose} needs the names of its labels in index order, "
            f"two or more; {len(labels)} given"
        )
    if len(set(labels)) < len(labels):
        raise InputError(f"{key}.labels: names must differ, got {', '.join(labels)}")


def _check_causal(key: str, settings: TaskSettings) -> None:
    if settings.labels and settings.choices:
        raise InputError(
            f"{key}.choices: {settings.choices} given, but `labels` names the answers of all "
            "records; allowed: one of both"
        )
    if settings.labels:
        _check_labels(key, settings.labels, "a task whose records all have the same answers")
    for field in _named_fields(key, settings.prompt):
        if field not in settings.text:
            raise InputError(
                f"{key}.prompt: {{{field}}} is not among the text fields {', '.join(settings.text)}"
            )
    allowed = ["accuracy"] if settings.choices or settings.labels else ["accuracy", *TEXT_METRICS]
    _check_metric(key, settings.metric, allowed)


def _named_fields(key: str, prompt: str) -> list[str]:
    try:
        parts = list(string.Formatter().parse(prompt))
    except ValueError as error:
        raise InputError(f"{key}.prompt: {error}; write {{{{ and }}}} for plain braces") from error
    for _, field, spec, conversion in parts:
        if spec or conversion:
            raise InputError(f"{key}.prompt: {{{field}}} may not be formatted; write its name only")
    return [field for _, field, _, _ in parts if field is not None]


def _check_metric(key: str, metric: str, allowed: Collection[str]) -> None:
    if metric not in allowed:
        raise InputError(f"{key}.metric: {metric!r} does not fit; allowed: {', '.join(allowed)}")
