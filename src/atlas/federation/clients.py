"""What a client trains on: tasks, examples, one client's data, and who holds an adapter for it.

These are the values that the data edge produces and that engines and backbones consume. Usually a
client holds an adapter of its own; under `pooled` all clients of a task hold one together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

TaskKind = Literal["classification", "causal"]


@dataclass(frozen=True)
class Task:
    """How records of one task become examples and how its answers are scored.

    Attributes:
        name: Registry name.
        kind: `classification` (a head over the label set) or `causal` (text answers).
        text: Record fields that hold the input, one or two for classification; for causal
            tasks the fields that `prompt` may name.
        label: Record field that holds the label (classification, or the index of the right
            choice) or the answer text (free-form causal tasks).
        labels: Label names in index order; of a causal task the answers that all its examples
            choose from, empty if there are none such.
        metric: The task's own metric, a name in `ops.metrics`.
        prompt: Template of a causal prompt, with the text fields in braces.
        choices: Record field that holds the list of choices of a causal choice task.
        answer_marker: Text after which the scored part of a free-form answer starts.
        max_new_tokens: Most tokens of a written answer; 0 for as many as the settings say.
        folder: Name of the folder or data set of its records; empty if it is the task's own.
    """

    name: str
    kind: TaskKind
    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...] = ()
    metric: str = "accuracy"
    prompt: str = ""
    choices: str = ""
    answer_marker: str = ""
    max_new_tokens: int = 0
    folder: str = ""

    @property
    def has_choices(self) -> bool:
        """Whether a causal task's answers are chosen among some, not written freely."""
        return self.kind == "causal" and bool(self.choices or self.labels)

    @property
    def records(self) -> str:
        """By which name sources know its records."""
        return self.folder or self.name

    @property
    def label_set(self) -> tuple[str, ...]:
        """What must be equal for two heads to be mixed; empty where there is no head."""
        return self.labels if self.kind == "classification" else ()


@dataclass(frozen=True)
class Example:
    """One example, already read through its task.

    Attributes:
        texts: One or two segments (classification), or the prompt alone (causal).
        label: Index into the task's labels or into `choices`; -1 for free-form answers.
        answer: Causal tasks: the text that carries the loss.
        choices: Causal choice tasks: all candidate answers.
    """

    texts: tuple[str, ...]
    label: int
    answer: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowCounts:
    """What became of the rows of a client's own files; those not counted here are used.

    Attributes:
        rows: All of them, blank lines apart.
        unlabelled: Rows whose label is empty.
        duplicates: Rows that repeat a text, with the same label.
        conflicts: Rows of texts that occur with different labels; none of them is used.
        judged: Rows whose text a client of the task is tested or validated by.
        beyond: Rows beyond the sizes that the settings name.
        notes: What else the user should know, with files and lines.
    """

    rows: int = 0
    unlabelled: int = 0
    duplicates: int = 0
    conflicts: int = 0
    judged: int = 0
    beyond: int = 0
    notes: tuple[str, ...] = ()

    @property
    def dropped(self) -> int:
        """Rows that are left out for another reason than their text occurring twice."""
        return self.unlabelled + self.judged + self.beyond

    def plus(self, other: RowCounts) -> RowCounts:
        """Of two files together."""
        both = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return RowCounts(**both)


@dataclass(frozen=True)
class ClientData:
    """One client: its task, its three disjoint splits and what is known of its device.

    `counts` is there for files of the client's own.
    """

    id: str
    task: Task
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    group: str = ""
    device: str = ""
    backbone: str = ""
    counts: RowCounts | None = None


@dataclass(frozen=True)
class DataFacts:
    """What may be known of a client's data by those who never see it.

    Attributes:
        train: Training examples.
        validation: Validation examples.
        test: Test examples.
        majority: Test score of always giving the most frequent training answer.
        chance: What guessing scores; None where answers are written freely.
        rows: Counts of its own file's rows, as the summary has them; None without such a file.
    """

    train: int
    validation: int
    test: int
    majority: float
    chance: float | None
    rows: dict[str, int] | None


@dataclass(frozen=True)
class Holder:
    """One adapter's training data and the clients it is judged by."""

    data: ClientData
    members: tuple[ClientData, ...]

    @property
    def id(self) -> str:
        """The id the server knows it by."""
        return self.data.id


def one_each(clients: Sequence[ClientData]) -> list[Holder]:
    """Every client holds its own adapter."""
    return [Holder(client, (client,)) for client in sorted(clients, key=lambda c: c.id)]


def one_per_task(clients: Sequence[ClientData]) -> list[Holder]:
    """Clients with the same task and backbone share one adapter, trained on all their data."""
    groups: dict[tuple[str, str], list[ClientData]] = {}
    for client in sorted(clients, key=lambda c: c.id):
        groups.setdefault((client.task.name, client.backbone), []).append(client)
    holders: list[Holder] = []
    for (task, _), members in sorted(groups.items()):
        number = 1 + sum(holder.data.task.name == task for holder in holders)
        pooled = replace(
            members[0],
            id=f"pooled-{task}" if number == 1 else f"pooled-{task}-{number}",
            train=tuple(example for member in members for example in member.train),
            validation=tuple(example for member in members for example in member.validation),
            test=(),
        )
        holders.append(Holder(pooled, tuple(members)))
    return holders


POOLS = {"none": one_each, "task": one_per_task}
