"""What a run folder has for newcomers, and what it keeps of them.

Their adapters lie beside the others', their records in `joins`. The record is written last. Until
it is there nobody has joined: what a killed process left is known by the fingerprint, which is
written first, and is replaced by the next try.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors

from atlas.backbones.export import ExportedAdapter, check_base, export_adapter, load_adapter
from atlas.backbones.transformer import TransformerBackbone
from atlas.build.dealing import backbone_names
from atlas.build.federation import Federation, assemble
from atlas.build.models import open_backbone
from atlas.build.plugins import load_plugins
from atlas.config.federation import FederationConfig
from atlas.config.load import load_resolved_federation
from atlas.config.plan import RankSettings
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Adapter, Layout, Member, adapter_shapes, is_head
from atlas.federation.clients import ClientData, Task
from atlas.federation.fingerprints.compare import Sketches
from atlas.federation.strategies.base import STRATEGIES, Strategy, find_strategy
from atlas.federation.training.evaluate import Limits
from atlas.jobs.federation.client_models import adapter_folder
from atlas.jobs.federation.plan import plan_again
from atlas.runs.events import read_events
from atlas.runs.files import write_bytes_atomic
from atlas.runs.folder import RunFolder, read_summary, write_text_atomic

JOINS = "joins"
Norms = Mapping[str, Mapping[str, float]]
"""Length of every layer's gradient in a fingerprint, by part and layer."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that can be joined: its settings and what its clients ended with."""

    config: FederationConfig
    strategy: Strategy
    adapters: dict[str, ExportedAdapter]

    @property
    def tasks(self) -> dict[str, Task]:
        """The clients' tasks by name."""
        return {adapter.task.name: adapter.task for adapter in self.adapters.values()}


def open_finished(folder: RunFolder) -> FinishedRun:
    """Open a run that newcomers can join.

    Raises:
        InputError: If it has not finished, never made fingerprints or has lost adapters.
    """
    config = load_resolved_federation(folder.config)
    load_plugins(config.plugins)
    strategy = find_strategy(config.strategy)
    if config.adapter.kind == "pq":
        raise InputError(f"{folder.path}: adapter.kind: pq, and newcomers to cores are not placed")
    if strategy.plans == "nothing":
        allowed = ", ".join(sorted(n for n, s in STRATEGIES.items() if s.plans != "nothing"))
        raise InputError(
            f"{folder.path}: its strategy {strategy.name!r} made no fingerprints that a newcomer "
            f"could be compared with; runs that can be joined have strategy {allowed}"
        )
    if not folder.summary.exists():
        raise InputError(f"{folder.path}: not finished; go on with: atlas resume {folder.path}")
    clients = sorted(read_summary(folder.summary)["score"]["clients"])
    adapters = {client: load_adapter(adapter_folder(folder, client)) for client in clients}
    return FinishedRun(config, strategy, adapters)


def planned_crowd(run: FinishedRun, folder: RunFolder) -> Federation:
    """The run's clients without their data, and the plan that was made for them.

    Raises:
        InputError: If fingerprints or adapters are missing, damaged or of another model.
    """
    named = backbone_names(run.config)
    clients = []
    for client, adapter in run.adapters.items():
        name = named.get(client, run.config.backbone.name)
        check_base(adapter, open_backbone(run.config, name))
        clients.append(ClientData(client, adapter.task, (), (), (), backbone=name))
    # Ranks were granted when the run began; they are read with its plan.
    crowd = assemble(run.config.model_copy(update={"ranks": RankSettings()}), clients)
    plan_again(crowd, folder)
    planned = crowd.state.planned.get(run.config.backbone.name)
    if planned is None or planned.prints is None:
        raise InputError(
            f"{folder.plan}: no client with the run's backbone {run.config.backbone.name!r} has a "
            "fingerprint"
        )
    return crowd


def check_layers(folder: RunFolder, clients: Collection[str], norms: Norms) -> None:
    """Refuse to compare fingerprints of other layers, as another version may have made them.

    A sketch has the same shape whatever went into it, so shapes do not tell.

    Args:
        folder: The run, whose events name the layers of every fingerprint.
        clients: Those the newcomer is compared with.
        norms: The newcomer's own, by part and layer.

    Raises:
        InputError: If the layers of any of them differ from the newcomer's.
    """
    for event in read_events(folder.events):
        if event["event"] != "fingerprinted" or event["client"] not in clients:
            continue
        recorded: Any = event.get("norms") or {}
        for part, there in recorded.items():
            differing = _differing(set(there), set(norms.get(part, {})))
            if differing:
                raise InputError(
                    f"{folder.plan}: the fingerprint of {event['client']} was made of other layers "
                    f"than this version takes ({', '.join(sorted(differing))}); run it again"
                )


def _differing(there: set[str], here: set[str]) -> set[str]:
    """Layers that only one side has; a head counts where both have one."""
    heads = [{name for name in side if is_head(name)} for side in (there, here)]
    return there ^ here if all(heads) else (there - heads[0]) ^ (here - heads[1])


def final_adapter(run: FinishedRun, layout: Layout, member: Member) -> Adapter:
    """What a client ended with, under a cohort's names.

    Raises:
        InputError: If it is not of the ranks and layers the run's settings say.
    """
    kept = run.adapters[member.id]
    tensors = Adapter.of(kept.layers, kept.head)
    shapes = adapter_shapes(layout, member)
    for name, shape in shapes.items():
        if name not in tensors or tensors[name].shape != shape:
            raise InputError(f"the adapter of {member.id} does not fit the run's settings: {name}")
    return Adapter({name: tensors[name] for name in shapes})


@dataclass(frozen=True)
class Joined:
    """What is kept of a newcomer.

    Attributes:
        record: What was found, as plain values.
        sketches: Its fingerprint as sent.
        adapter: Its first adapter.
        layout: Where that adapter sits.
        backbone: The model it belongs to.
        task: The newcomer's task.
        limits: How much text its model reads and makes.
        card: Facts for the adapter's model card.
    """

    record: Mapping[str, object]
    sketches: Sketches
    adapter: Adapter
    layout: Layout
    backbone: TransformerBackbone
    task: Task
    limits: Limits
    card: Mapping[str, object]


def taken_ids(folder: RunFolder, clients: Collection[str]) -> set[str]:
    """Ids that a newcomer may not have: those of the run, of earlier newcomers, of any adapter."""
    kept = folder.path / JOINS
    joined = {path.stem for path in kept.glob("*.json")}
    begun = {path.stem for path in kept.glob("*.safetensors")} - joined
    exported = {path.name for path in folder.adapters.iterdir() if not path.name.startswith(".")}
    return {*clients, *joined, *(exported - begun)}


def write_join(folder: RunFolder, client: str, joined: Joined) -> None:
    """Write fingerprint, adapter and record; if anything fails, none of them."""
    kept, place = folder.path / JOINS, folder.safe_child(client)
    prints, record = kept / f"{client}.safetensors", kept / f"{client}.json"
    text = json.dumps(joined.record, indent=2, sort_keys=True) + "\n"
    sketches = save_tensors({k: value.contiguous() for k, value in joined.sketches.items()})
    with contextlib.ExitStack() as undo:
        undo.callback(_remove_empty, kept)
        kept.mkdir(exist_ok=True)
        undo.callback(prints.unlink, missing_ok=True)
        write_bytes_atomic(prints, sketches)
        undo.callback(shutil.rmtree, place, ignore_errors=True)
        _export(place, joined)
        undo.callback(record.unlink, missing_ok=True)
        write_text_atomic(record, text)
        undo.pop_all()


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # other newcomers are kept there
        folder.rmdir()


def _export(place: Path, joined: Joined) -> None:
    adapter = joined.adapter
    export_adapter(
        place,
        backbone=joined.backbone,
        task=joined.task,
        limits=joined.limits,
        layers=adapter.layers,
        alpha=joined.layout.alpha,
        head=adapter.head,
        card=joined.card,
    )
