"""Use one client's finished model: export it, ask it, score it on a file."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.backbones.export import complete_export, merge_adapter
from atlas.config.load import load_resolved_federation
from atlas.data.examples import read_example
from atlas.data.files import read_records
from atlas.errors import InputError
from atlas.federation.batching.forward import Model, Stack
from atlas.federation.batching.store import ExampleStore
from atlas.federation.clients import Task
from atlas.federation.training.evaluate import Limits, score_answers, score_labels
from atlas.jobs.federation.client_models import (
    ClientModels,
    Opened,
    adapter_folder,
    open_clients,
    read_client,
)
from atlas.runs.files import fresh_target
from atlas.runs.folder import RunFolder


@dataclass(frozen=True)
class ClientModel:
    """One client's model, ready to answer."""

    task: Task
    model: Model
    stack: Stack
    limits: Limits

    def store(self, examples: Sequence[Any]) -> ExampleStore:
        """The examples, tokenised for this model, under the name `all`."""
        parts = {"all": (self.task, examples)}
        return ExampleStore(self.model, parts, self.limits.max_length)


def export_client(folder: RunFolder, client: str, to: Path) -> None:
    """Copy a client's PEFT folder and add its tokenizer; nothing that exists is overwritten."""
    source = adapter_folder(folder, client)
    found = _open(folder, client)
    with fresh_target(to):
        shutil.copytree(source, to)
        complete_export(to, backbone=found.backbone, adapter=found.adapter)


def export_merged(folder: RunFolder, client: str, to: Path) -> None:
    """Write the backbone with the client's adapter merged in."""
    found = _open(folder, client)
    with fresh_target(to):
        merge_adapter(to, backbone=found.backbone, adapter=found.adapter)


def peft_model(folder: RunFolder, client: str) -> Any:  # noqa: ANN401 - a PeftModel, not typed
    """The client's model as PEFT itself knows it, on a copy of the backbone."""
    from atlas.backbones.plain_model import plain_peft_model

    found = _open(folder, client)
    place = adapter_folder(folder, client)
    return plain_peft_model(place, backbone=found.backbone, task=found.task)


def predict_texts(folder: RunFolder, client: str, texts: Sequence[str]) -> dict[str, Any]:
    """The client's answer to one input given as its text fields."""
    return predict_many(open_clients(folder, [client]), client, [texts])[0]


def predict_many(
    models: ClientModels, client: str, inputs: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """A client's answers to many inputs, each given as its text fields.

    Raises:
        InputError: There is no such client, or an input has other fields than its task reads.
    """
    task = models.stack_of(client).tasks[client]
    asked = []
    for number, texts in enumerate(inputs, start=1):
        if len(texts) != len(task.text):
            raise InputError(
                f"{len(texts)} texts given, but task {task.name!r} reads "
                f"{len(task.text)}: {', '.join(task.text)}"
            )
        where = "the given text" if len(inputs) == 1 else f"text {number}"
        asked.append(models.read(client, dict(zip(task.text, texts, strict=True)), where))
    answers = models.answer(asked)
    return [{**told, "answer": told["answer"].strip()} for told in answers]


def evaluate_file(folder: RunFolder, client: str, file: Path) -> dict[str, Any]:
    """All scores of a client's model on a labelled JSONL or CSV file."""
    chosen = open_client(folder, client)
    examples = [read_example(chosen.task, record, record.where) for record in read_records(file)]
    store = chosen.store(examples)
    scores = score_labels(store, chosen.stack, [store.rows("all")], [chosen.task])[0]
    if chosen.task.kind == "causal":
        parts = [(chosen.task, examples)]
        scores |= score_answers(chosen.model, chosen.stack, parts, chosen.limits)[0]
    facts = {"client": client, "task": chosen.task.name, "metric": chosen.task.metric}
    return {**facts, "examples": len(examples), **scores}


def open_client(folder: RunFolder, client: str) -> ClientModel:
    """Load a client's exported adapter onto its backbone."""
    (one,) = open_clients(folder, [client]).stacks
    task = one.tasks[client]
    return ClientModel(task, one.model, one.stack, one.limits.of(task))


def _open(folder: RunFolder, client: str) -> Opened:
    return read_client(folder, load_resolved_federation(folder.config), client)
