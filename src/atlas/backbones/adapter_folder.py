"""Adapters of many clients in one folder, in the one form that servers of many adapters read.

PEFT divides alpha by each module's own rank. vLLM and LoRAX divide it by the one rank that
adapter_config.json names, so an adapter of unequal ranks would silently do something else there.
Here every adapter has one rank: its smaller modules are filled up with zeros, and B is scaled so
that alpha / r times B A stays the same. Heads are filled up to the largest label count of their
base model, since one model in memory has one size of head; what is beyond a client's own labels is
zero and not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from atlas.backbones.export import ExportedAdapter, write_peft_files
from atlas.backbones.folder_card import ServedGroup, folder_card
from atlas.backbones.peft_folder import whole_folder
from atlas.backbones.transformer import TransformerBackbone
from atlas.federation.clients import Task
from atlas.federation.training.evaluate import Limits

CLIENTS = "clients.json"
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for --max-lora-rank; it is 16 unless told otherwise."""


@dataclass(frozen=True)
class Collected:
    """One client as it goes into the folder."""

    id: str
    backbone: TransformerBackbone
    adapter: ExportedAdapter
    limits: Limits

    @property
    def task(self) -> Task:
        """What its adapter was trained for."""
        return self.adapter.task

    @property
    def rank(self) -> int:
        """The one rank its adapter is given."""
        return max(a.shape[0] for a, _ in self.adapter.layers.values())

    @property
    def group(self) -> str:
        """Those that one model in memory serves: of one base model and kind of task."""
        return f"{self.backbone.name}-{self.task.kind}"

    def refused(self) -> str:
        """Why neither vLLM nor LoRAX serves it; empty if they do."""
        if self.adapter.biases:
            return "its PQ core adds a constant beside B A (lora_bias), which only PEFT reads"
        if self.task.kind == "classification":
            return (
                "it has a classification head of its own (modules_to_save), which vLLM refuses and "
                "only PEFT reads"
            )
        if self.backbone.quant is not None:
            return "it was trained on four-bit weights, which other servers make differently"
        if self.rank > VLLM_RANKS[-1]:
            return f"its rank {self.rank} is above {VLLM_RANKS[-1]}, the most that vLLM takes"
        return ""


def vllm_rank(clients: Sequence[Collected]) -> int:
    """What vLLM must be told as the largest rank of adapters that it serves; 0 without such."""
    most = max((client.rank for client in clients if not client.refused()), default=0)
    return next((rank for rank in VLLM_RANKS if rank >= most), 0) if most else 0


def write_folder(to: Path, clients: Sequence[Collected], left_out: Mapping[str, str]) -> None:
    """Write all adapters, what is known of them and how to serve them; whole or not at all.

    Args:
        to: The new folder.
        clients: Those to write.
        left_out: Why others are not among them, by id.
    """
    groups: dict[str, list[Collected]] = {}
    for client in clients:
        groups.setdefault(client.group, []).append(client)
    with whole_folder(to) as fresh:
        for some in groups.values():
            labels = max(len(client.task.label_set) for client in some)
            for client in some:
                place = fresh / client.id
                place.mkdir()
                adapter = one_rank(client.adapter, client.rank)
                adapter = adapter._replace(head=filled_head(client, labels))
                write_peft_files(place, backbone=client.backbone, task=client.task, adapter=adapter)
        about = [_about(client) for client in clients]
        (fresh / CLIENTS).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        cards = [_card(name, some) for name, some in groups.items()]
        (fresh / "README.md").write_text(folder_card(cards, left_out), encoding="utf-8")


def one_rank(adapter: ExportedAdapter, rank: int) -> ExportedAdapter:
    """The same adapter with one rank in all modules: alpha / rank times B A is what it was.

    Constants that it adds are scaled as B is.
    """
    layers, biases = {}, {}
    for module, (a, b) in adapter.layers.items():
        own = a.shape[0]
        wide, tall = a.new_zeros(rank, a.shape[1]), b.new_zeros(b.shape[0], rank)
        wide[:own], tall[:, :own] = a, b * (rank / own)
        layers[module] = (wide, tall)
        if module in adapter.biases:
            biases[module] = adapter.biases[module] * (rank / own)
    return adapter._replace(layers=layers, biases=biases)


def filled_head(client: Collected, labels: int) -> dict[str, Tensor]:
    """A client's head with rows for so many labels; those beyond its own are zero."""
    head = dict(client.adapter.head)
    for layer in client.backbone.head_layers if head else ():
        for name in (f"{layer.name}.weight", f"{layer.name}.bias"):
            if not layer.d_out and name in head:
                own = head[name]
                head[name] = own.new_zeros(labels, *own.shape[1:])
                head[name][: len(own)] = own
    return head


def _about(client: Collected) -> dict[str, Any]:
    """What a server, or who asks it, must know of a client."""
    task, limits = client.task, client.limits
    refused = client.refused()
    return {
        "client": client.id,
        "group": client.group,
        "base": client.backbone.source,
        "task": task.name,
        "kind": task.kind,
        "text": list(task.text),
        "labels": list(task.labels),
        "prompt": task.prompt,
        "max_length": limits.max_length,
        "max_new_tokens": limits.max_new_tokens,
        "rank": client.rank,
        "servers": ["peft"] if refused else ["peft", "vllm", "lorax"],
        **({"only_peft_because": refused} if refused else {}),
    }


def _card(name: str, clients: Sequence[Collected]) -> ServedGroup:
    return ServedGroup(
        name=name,
        backbone=clients[0].backbone,
        kind=clients[0].task.kind,
        clients=[client.id for client in clients],
        labels=max(len(client.task.label_set) for client in clients),
        served=[client.id for client in clients if not client.refused()],
        largest_rank=vllm_rank(clients),
        refused={client.id: client.refused() for client in clients if client.refused()},
    )
