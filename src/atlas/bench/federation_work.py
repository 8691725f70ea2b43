"""The work that all contenders of `atlas bench federation` are given, as files.

Ours reads the settings; the others read the same examples, the batches that the settings lead to
and the tensors that everybody starts with. Texts are not tokenised yet: that is part of the work.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file
from torch import Tensor

from atlas.backbones.load import MINILM_PACKAGE
from atlas.build.models import find_member, find_model, open_backbone, start_cohort
from atlas.config.federation import FederationConfig
from atlas.config.load import dump_config
from atlas.federation.clients import ClientData, Example, TaskKind, one_each
from atlas.federation.training.loop import Clock, Lesson, plan_batches

CONFIG, WORK, START = "config.yaml", "work.json", "start.safetensors"


@dataclass(frozen=True)
class Optimiser:
    """AdamW with clipped gradients; moments start afresh every round."""

    lr: float
    weight_decay: float
    clip: float


@dataclass(frozen=True)
class ClientShare:
    """One client's examples, and which of them each step of each round takes."""

    examples: tuple[Example, ...]
    batches: list[list[list[int]]]


@dataclass(frozen=True)
class FederationWork:
    """What a contender has to do.

    Attributes:
        folder: Of the frozen model.
        kind: Of all clients' tasks.
        labels: How many the tasks have.
        prefix: Name of the body inside a model with a head.
        modules: Adapted linear modules, inside the body.
        rank: Of their adapters.
        alpha: A layer adds (alpha / rank) * B @ A.
        max_length: Tokens kept.
        optimiser: How clients train.
        clients: By id, in the order in which they are summed.
    """

    folder: str
    kind: TaskKind
    labels: int
    prefix: str
    modules: tuple[str, ...]
    rank: int
    alpha: float
    max_length: int
    optimiser: Optimiser
    clients: dict[str, ClientShare]

    @property
    def rounds(self) -> int:
        """How many there are."""
        return len(next(iter(self.clients.values())).batches)


_FORM = TypeAdapter(FederationWork)


def write_work(
    folder: Path, config: FederationConfig, clients: Sequence[ClientData]
) -> FederationWork:
    """Write settings, work and start of a federation with one model, kind of task and rank."""
    model = find_model(config, config.backbone.name)
    backbone = open_backbone(config, config.backbone.name)
    holders = one_each(clients)
    members = [find_member(config.adapter, model.layout, holder) for holder in holders]
    start = start_cohort(config, model, members).take(members[0].id)
    train = config.train
    work = FederationWork(
        folder=str(model_folder(config.backbone.name)),
        kind=clients[0].task.kind,
        labels=len(clients[0].task.label_set),
        prefix=backbone.family.prefix,
        modules=model.layout.modules,
        rank=members[0].ranks[0],
        alpha=model.layout.alpha,
        max_length=config.backbone.max_length,
        optimiser=Optimiser(train.lr, train.weight_decay, train.clip or float("inf")),
        clients={holder.id: _share(config, holder.data) for holder in holders},
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(dump_config(config), encoding="utf-8")
    (folder / WORK).write_bytes(_FORM.dump_json(work))
    save_file(start, folder / START)
    return work


def read_work(folder: Path) -> tuple[FederationWork, dict[str, Tensor]]:
    """The work and the tensors that every client starts with."""
    return _FORM.validate_json((folder / WORK).read_bytes()), load_file(folder / START)


def model_folder(name: str) -> Path:
    """Where the files of a model lie; a name other than `minilm` is a folder."""
    if name != "minilm":
        return Path(name)
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "model"


def _share(config: FederationConfig, client: ClientData) -> ClientShare:
    rows = np.arange(len(client.train))
    lesson = Lesson(client.id, rows, rows[:0])
    rounds = []
    for number in range(1, config.rounds + 1):
        plan = plan_batches(lesson, config.train, Clock(config.seed, number, config.rounds))
        rounds.append([batch.tolist() for epoch in plan for batch in epoch])
    return ClientShare(client.train, rounds)
