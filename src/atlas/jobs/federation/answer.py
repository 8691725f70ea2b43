"""Use one client's finished model: export it, ask it, score it on a file."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atlas.backbones.export import (
    ExportedAdapter,
    check_base,
    complete_export,
    load_adapter,
    merge_adapter,
)
from atlas.backbones.transformer import TransformerBackbone
from atlas.build.dealing import backbone_names
from atlas.build.models import find_autocast, open_backbone, text_limits
from atlas.config.federation import FederationConfig
from atlas.config.load import load_resolved_federation
from atlas.data.examples import read_example, render_prompt
from atlas.data.files import read_records
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Adapter, Layout, Member
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.batching.forward import Model, Stack, run, stack_cohorts
from atlas.federation.batching.store import ExampleStore
from atlas.federation.clients import Task
from atlas.federation.training.evaluate import Limits, generate_answers, score_answers, score_labels
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


def adapter_folder(folder: RunFolder, client: str) -> Path:
    """Where a finished run keeps a client's adapter."""
    known = sorted(p.name for p in folder.adapters.iterdir()) if folder.adapters.is_dir() else []
    if not known:
        if folder.summary.exists():
            raise InputError(
                f"{folder.path}: adapter.gate: input weighs adapters token by token, which no PEFT "
                "adapter does, so this run has none to export or to ask; allowed: scalar"
            )
        raise InputError(f"{folder.path}: no adapters yet; go on with: atlas resume {folder.path}")
    if client not in known:
        raise InputError(f"--client {client}: no such client; clients: {', '.join(known)}")
    return folder.adapters / client


def export_client(folder: RunFolder, client: str, to: Path) -> None:
    """Copy a client's PEFT folder and add its tokenizer; nothing that exists is overwritten."""
    source = adapter_folder(folder, client)
    _, backbone, adapter = _open(folder, client)
    with fresh_target(to):
        shutil.copytree(source, to)
        complete_export(to, backbone=backbone, adapter=adapter)


def export_merged(folder: RunFolder, client: str, to: Path) -> None:
    """Write the backbone with the client's adapter merged in."""
    _, backbone, adapter = _open(folder, client)
    with fresh_target(to):
        merge_adapter(to, backbone=backbone, adapter=adapter)


def predict_texts(folder: RunFolder, client: str, texts: Sequence[str]) -> dict[str, Any]:
    """The client's answer to one input given as its text fields."""
    chosen = open_client(folder, client)
    fields = chosen.task.text
    if len(texts) != len(fields):
        raise InputError(
            f"{len(texts)} texts given, but task {chosen.task.name!r} reads "
            f"{len(fields)}: {', '.join(fields)}"
        )
    record: dict[str, object] = dict(zip(fields, texts, strict=True))
    if chosen.task.kind == "causal":
        prompt = render_prompt(chosen.task, texts)
        answer = generate_answers(chosen.model, chosen.stack, [prompt], chosen.limits)[0]
        return {"client": client, "task": chosen.task.name, "answer": answer.strip()}
    record[chosen.task.label] = 0
    store = chosen.store([read_example(chosen.task, record, "the given text")])
    with torch.no_grad():
        outcome = run(chosen.model, chosen.stack, store.batch([store.rows("all")]))
    assert outcome.logits is not None
    shares = outcome.logits[0, 0, : len(chosen.task.labels)].softmax(-1).tolist()
    return {
        "client": client,
        "task": chosen.task.name,
        "answer": chosen.task.labels[int(outcome.predicted[0, 0])],
        "probabilities": dict(zip(chosen.task.labels, shares, strict=True)),
    }


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
    config, backbone, adapter = _open(folder, client)
    blocks = {i: backbone.linears(i) for i in range(backbone.depth)}
    linears = {name: linear for block in blocks.values() for name, linear in block.items()}
    first = min(i for i, block in blocks.items() if set(block) & set(adapter.layers))
    modules = tuple(name for name in linears if name in adapter.layers)
    widths = tuple((linears[m].in_features, linears[m].out_features) for m in modules)
    layout = Layout(
        backbone.name,
        modules,
        widths,
        backbone.head_layers,
        adapter.alpha,
        biased=bool(adapter.biases),
    )
    ranks = tuple(adapter.layers[module][0].shape[0] for module in modules)
    member = Member(client, ranks, adapter.task.label_set)
    tensors = Adapter.of({m: adapter.layers[m] for m in modules}, adapter.head, adapter.biases)
    dtype = next(iter(tensors.values())).dtype
    cohort = initial_cohort(layout, [member], 0, dtype=dtype, device=backbone.device)
    stack = stack_cohorts([cohort.put({client: tensors})])
    model = Model(backbone, layout, first, autocast=find_autocast(config))
    return ClientModel(adapter.task, model, stack, text_limits(config).of(adapter.task))


def _open(
    folder: RunFolder, client: str
) -> tuple[FederationConfig, TransformerBackbone, ExportedAdapter]:
    config = load_resolved_federation(folder.config)
    adapter = load_adapter(adapter_folder(folder, client))
    backbone = open_backbone(config, backbone_names(config).get(client, config.backbone.name))
    check_base(adapter, backbone)
    return config, backbone, adapter
