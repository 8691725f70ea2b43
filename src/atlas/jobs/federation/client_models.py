"""Models of many clients of a finished run, each backbone in memory once.

Clients of one backbone and one kind of task are rows of one stack: texts of different clients go
through the frozen model in one pass, each under its own client's adapter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas.backbones.export import ExportedAdapter, check_base, load_adapter
from atlas.backbones.transformer import TransformerBackbone
from atlas.build.dealing import backbone_names
from atlas.build.models import find_autocast, open_backbone, text_limits
from atlas.config.federation import FederationConfig
from atlas.config.load import load_resolved_federation
from atlas.data.examples import read_texts, render_prompt
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Adapter, Layout, Member
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.batching.forward import Model, Stack, stack_cohorts
from atlas.federation.batching.store import ExampleStore
from atlas.federation.clients import Example, Task
from atlas.federation.training.evaluate import Limits, generate_rows, label_shares
from atlas.runs.folder import RunFolder


@dataclass(frozen=True)
class Opened:
    """What lies on disk for one client."""

    id: str
    backbone: TransformerBackbone
    adapter: ExportedAdapter

    @property
    def task(self) -> Task:
        """What the client was trained for."""
        return self.adapter.task


@dataclass(frozen=True)
class Question:
    """One text, or the text fields of a task, that a client's model is to answer.

    Attributes:
        client: Whose model.
        texts: One for each text field of the client's task; with `prompt` the prompt alone.
        prompt: Whether a causal model goes on from the text as it is, without its task's template.
        max_tokens: Of a causal model's answer; None for as many as its client was trained to write.
    """

    client: str
    texts: tuple[str, ...]
    prompt: bool = False
    max_tokens: int | None = None


@dataclass(frozen=True)
class ClientStack:
    """Clients of one backbone and one kind of task, as rows of one stack.

    Attributes:
        tasks: By client, in the order of the rows.
        model: The backbone, and where adapters sit in it.
        stack: Their adapters.
        limits: How much text is read and made, before a task's own limit.
    """

    tasks: Mapping[str, Task]
    model: Model
    stack: Stack
    limits: Limits

    def store(self, parts: Mapping[str, Sequence[Example]]) -> ExampleStore:
        """Examples by client, tokenised for this model."""
        named = {client: (self.tasks[client], some) for client, some in parts.items()}
        return ExampleStore(self.model, named, self.limits.max_length)

    def rows(self, clients: Iterable[str]) -> Stack:
        """The adapters of some clients."""
        places = {client: row for row, client in enumerate(self.tasks)}
        index = [places[client] for client in clients]
        return self.stack.rows(torch.tensor(index, device=self.stack.labels.device))

    def classify(self, asked: Sequence[Question]) -> list[dict[str, Any]]:
        """The likeliest label of every question, and how likely each is."""
        order = _by_client(asked)
        examples = {c: [Example(asked[i].texts, 0) for i in own] for c, own in order.items()}
        store = self.store(examples)
        found = label_shares(store, self.rows(order), [store.rows(c) for c in order])
        answers: dict[int, dict[str, Any]] = {}
        for (client, own), shares in zip(order.items(), found, strict=True):
            labels = self.tasks[client].labels
            for place, row in zip(own, shares, strict=True):
                each = dict(zip(labels, row.tolist(), strict=False))
                answers[place] = {"answer": labels[int(row.argmax())], "probabilities": each}
        return [answers[i] for i in range(len(asked))]

    def write(self, asked: Sequence[Question]) -> list[dict[str, Any]]:
        """A greedy answer to every question; those of one length are written together."""
        lengths: dict[int, list[int]] = {}
        for place, question in enumerate(asked):
            lengths.setdefault(self.length(question), []).append(place)
        answers: dict[int, str] = {}
        for length, places in lengths.items():
            order = _by_client([asked[i] for i in places])
            prompts = [[self._prompt(asked[places[i]]) for i in own] for own in order.values()]
            limits = replace(self.limits, max_new_tokens=length)
            made = generate_rows(self.model, self.rows(order), prompts, limits)
            for own, texts in zip(order.values(), made, strict=True):
                answers |= {places[i]: text for i, text in zip(own, texts, strict=True)}
        return [self._told(question, answers[i]) for i, question in enumerate(asked)]

    def _told(self, question: Question, answer: str) -> dict[str, Any]:
        """An answer; to a bare prompt with the tokens of both, counted in the texts as they are."""
        if not question.prompt:
            return {"answer": answer}
        read, made = map(self._count, (question.texts[0], answer))
        full = made >= self.length(question)
        return {"answer": answer, "tokens": {"prompt": read, "answer": made, "full": full}}

    def _count(self, text: str) -> int:
        backbone: Any = self.model.backbone
        return len(backbone.tokenizer(text, add_special_tokens=False).input_ids)

    @property
    def room(self) -> int:
        """Most tokens that an answer may have beside at least one of a prompt."""
        return self.model.backbone.max_positions - 1

    def length(self, question: Question) -> int:
        """Most tokens that are written for a question."""
        most = self.limits.of(self.tasks[question.client]).max_new_tokens
        return most if question.max_tokens is None else question.max_tokens

    def _prompt(self, question: Question) -> str:
        if question.prompt:
            return question.texts[0]
        return render_prompt(self.tasks[question.client], question.texts)


def _by_client(asked: Sequence[Question]) -> dict[str, list[int]]:
    """Places of every client's questions."""
    order: dict[str, list[int]] = {}
    for place, question in enumerate(asked):
        order.setdefault(question.client, []).append(place)
    return order


@dataclass(frozen=True)
class ClientModels:
    """Clients of a run, ready to answer."""

    stacks: tuple[ClientStack, ...]

    @property
    def tasks(self) -> dict[str, Task]:
        """Task of every client, by id."""
        found = {c: task for stack in self.stacks for c, task in stack.tasks.items()}
        return dict(sorted(found.items()))

    def stack_of(self, client: str) -> ClientStack:
        """The stack that a client is a row of.

        Raises:
            InputError: There is no such client.
        """
        for stack in self.stacks:
            if client in stack.tasks:
                return stack
        raise InputError(f"client {client!r}: no such client; clients: {', '.join(self.tasks)}")

    def read(self, client: str, record: Mapping[str, object], where: str) -> Question:
        """The question that a record puts to a client.

        Raises:
            InputError: There is no such client, or its task's fields are not in the record.
        """
        task = self.stack_of(client).tasks[client]
        return Question(client, read_texts(task, record, where))

    def answer(self, asked: Sequence[Question]) -> list[dict[str, Any]]:
        """Answers in the order of the questions, those of one backbone in passes together.

        Returns:
            Of each its `client`, `task` and `answer`; from a classification model `probabilities`.
        """
        found: dict[int, dict[str, Any]] = {}
        for stack in self.stacks:
            places = [i for i, question in enumerate(asked) if question.client in stack.tasks]
            own = [asked[i] for i in places]
            if not own:
                continue
            causal = next(iter(stack.tasks.values())).kind == "causal"
            answers = stack.write(own) if causal else stack.classify(own)
            for place, question, told in zip(places, own, answers, strict=True):
                whose = {"client": question.client, "task": stack.tasks[question.client].name}
                found[place] = whose | told
        return [found[i] for i in range(len(asked))]


def adapter_folder(folder: RunFolder, client: str) -> Path:
    """Where a finished run keeps a client's adapter.

    Raises:
        InputError: The run has no adapters, or no such client.
    """
    known = client_names(folder)
    if client not in known:
        raise InputError(f"--client {client}: no such client; clients: {', '.join(known)}")
    return folder.adapters / client


def client_names(folder: RunFolder) -> list[str]:
    """Clients of a finished run, newcomers among them.

    Raises:
        InputError: It has no adapters.
    """
    places = folder.adapters.iterdir() if folder.adapters.is_dir() else ()
    known = sorted(p.name for p in places if p.is_dir() and not p.name.startswith("."))
    if known:
        return known
    if folder.summary.exists():
        raise InputError(
            f"{folder.path}: adapter.gate: input weighs adapters token by token, which no PEFT "
            "adapter does, so this run has none to export or to ask; allowed: scalar"
        )
    raise InputError(f"{folder.path}: no adapters yet; go on with: atlas resume {folder.path}")


def read_client(folder: RunFolder, config: FederationConfig, client: str) -> Opened:
    """A client's adapter and the model it belongs to.

    Raises:
        InputError: There is no such client, or its adapter is damaged or of another model.
    """
    adapter = load_adapter(adapter_folder(folder, client))
    backbone = open_backbone(config, backbone_names(config).get(client, config.backbone.name))
    check_base(adapter, backbone)
    return Opened(client, backbone, adapter)


def open_clients(folder: RunFolder, clients: Collection[str] | None = None) -> ClientModels:
    """Load the exported adapters of some clients, by default all, onto their backbones.

    Raises:
        InputError: There is no such client, or its adapter is damaged or of another model.
    """
    config = load_resolved_federation(folder.config)
    names = client_names(folder) if clients is None else dict.fromkeys(clients)
    groups: dict[tuple[object, ...], list[Opened]] = {}
    for client in sorted(names):
        found = read_client(folder, config, client)
        biased = bool(found.adapter.biases)
        key = (id(found.backbone), found.task.kind, found.adapter.alpha, biased)
        groups.setdefault(key, []).append(found)
    return ClientModels(tuple(_stacked(config, some) for some in groups.values()))


def _stacked(config: FederationConfig, clients: Sequence[Opened]) -> ClientStack:
    """Clients of one backbone, kind of task and alpha as one stack."""
    backbone, first = clients[0].backbone, clients[0].adapter
    blocks = {i: backbone.linears(i) for i in range(backbone.depth)}
    linears = {name: linear for block in blocks.values() for name, linear in block.items()}
    used = {module for client in clients for module in client.adapter.layers}
    modules = tuple(name for name in linears if name in used)
    layout = Layout(
        backbone.name,
        modules,
        tuple((linears[m].in_features, linears[m].out_features) for m in modules),
        backbone.head_layers,
        first.alpha,
        biased=bool(first.biases),
    )
    members, tensors = [], {}
    for client in clients:
        layers = _whole(client.adapter, layout)
        ranks = tuple(layers[module][0].shape[0] for module in modules)
        members.append(Member(client.id, ranks, client.task.label_set))
        tensors[client.id] = Adapter.of(layers, client.adapter.head, client.adapter.biases)
    dtype = next(iter(first.layers.values()))[0].dtype
    cohort = initial_cohort(layout, members, 0, dtype=dtype, device=backbone.device)
    start = min(i for i, block in blocks.items() if set(block) & used)
    model = Model(backbone, layout, start, autocast=find_autocast(config))
    tasks = {client.id: client.task for client in sorted(clients, key=lambda c: c.id)}
    return ClientStack(tasks, model, stack_cohorts([cohort.put(tensors)]), text_limits(config))


def _whole(adapter: ExportedAdapter, layout: Layout) -> dict[str, tuple[Tensor, Tensor]]:
    """Factors of every module; where this client has none, rank one that changes nothing."""
    like = next(iter(adapter.layers.values()))[0]
    layers = dict(adapter.layers)
    for module, (d_in, d_out) in zip(layout.modules, layout.widths, strict=True):
        if module not in layers:
            layers[module] = (like.new_zeros(1, d_in), like.new_zeros(d_out, 1))
    return layers
