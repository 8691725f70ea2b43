"""What a client trains on: tasks, examples and one client's data.

These are the values that the data edge produces and that engines and backbones consume.
"""

from __future__ import annotations

from dataclasses import dataclass
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
        labels: Label names in index order; empty for causal tasks.
        metric: The task's own metric, a name in `ops.metrics`.
        prompt: Template of a causal prompt, with the text fields in braces.
        choices: Record field that holds the list of choices of a causal choice task.
        answer_marker: Text after which the scored part of a free-form answer starts.
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
class ClientData:
    """One client: its task, its three disjoint splits and what is known of its device."""

    id: str
    task: Task
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    group: str = ""
    device: str = ""
    backbone: str = ""
