"""All adapters of the clients that share a backbone, stacked and zero-padded.

Every tensor of a cohort has the client as dimension 0. Names are `lora_a/<module>` [n, R, d_in],
`lora_b/<module>` [n, d_out, R], `head/<layer>.weight` [n, L, d_in] and `head/<layer>.bias` [n, L],
with R the largest rank and L the largest label count. Slots a client does not use are zero and
stay zero under any optimiser step, so a padded cohort trains exactly like n separate adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from atlas.federation.batching.backbone import HeadLayer
from atlas.ops.lowrank.factors import Layer
from atlas.runs.checkpoint import tensors_sha256
from atlas.runs.seeds import generator

HEAD_STD = 0.02
Adapter = dict[str, Tensor]
"""One client's tensors under the cohort's names, without padding and without dimension 0."""
Trains = Literal["both", "b"]
"""Which factors local training moves: A and B, or B alone, with A left as drawn."""


@dataclass(frozen=True)
class Layout:
    """Where adapters sit in one backbone.

    Attributes:
        backbone: The backbone's name; part of the address of initial values.
        modules: Full names of the adapted linear modules, in block order.
        widths: (d_in, d_out) of each module.
        head: The trained head layers.
        alpha: A layer adds (alpha / rank) * B @ A.
    """

    backbone: str
    modules: tuple[str, ...]
    widths: tuple[tuple[int, int], ...]
    head: tuple[HeadLayer, ...]
    alpha: float


@dataclass(frozen=True)
class Member:
    """What the cohort must know of one client.

    Attributes:
        id: Client id.
        ranks: One rank per module.
        label_set: Heads mix only between equal label sets; empty for causal tasks.
    """

    id: str
    ranks: tuple[int, ...]
    label_set: tuple[str, ...] = ()

    @property
    def labels(self) -> int:
        """Number of labels; zero without a head."""
        return len(self.label_set)


@dataclass(frozen=True)
class Cohort:
    """Stacked adapters of `members`, sorted by id.

    Attributes:
        layout: Where the adapters sit.
        members: Whose they are.
        tensors: By name; see the module.
        trains: Which factors local training moves.
        deltas: Dense changes [d_out, d_in] by client and module, which a client adds to the
            backbone beside its adapter and keeps to itself. Clients without any are left out.
    """

    layout: Layout
    members: tuple[Member, ...]
    tensors: dict[str, Tensor]
    trains: Trains = "both"
    deltas: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Client ids in stacking order."""
        return tuple(member.id for member in self.members)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Positions in the stack by client id."""
        return {client: row for row, client in enumerate(self.clients)}

    def ranks(self, module: int) -> Tensor:
        """Every client's rank in one module, [n]."""
        return torch.tensor([member.ranks[module] for member in self.members])

    def scales(self, module: int) -> Tensor:
        """Every client's alpha / rank in one module, float64 [n]."""
        return self.layout.alpha / self.ranks(module).to(torch.float64)

    def layer(self, module: int) -> Layer:
        """One module's factors with every client's rank and scale, all on one device."""
        name = self.layout.modules[module]
        a, b = self.tensors[f"lora_a/{name}"], self.tensors[f"lora_b/{name}"]
        return Layer(a, b, self.ranks(module).to(a.device), self.scales(module).to(a.device))

    def index(self, clients: Sequence[str]) -> Tensor:
        """Positions of `clients` in the stack."""
        return torch.tensor([self.places[name] for name in clients], dtype=torch.long)

    def take(self, client: str) -> Adapter:
        """One client's adapter, unpadded copies."""
        row = self.places[client]
        shapes = adapter_shapes(self.layout, self.members[row])
        return {name: _corner(self.tensors[name][row], shape) for name, shape in shapes.items()}

    def put(self, adapters: Mapping[str, Mapping[str, Tensor]]) -> Cohort:
        """A cohort with the given clients' tensors replaced; tensors not given stay."""
        tensors = {name: value.clone() for name, value in self.tensors.items()}
        for client, adapter in adapters.items():
            row = self.places[client]
            for name, value in adapter.items():
                slot = tensors[name][row]
                slot.zero_()
                slot[tuple(slice(0, size) for size in value.shape)] = value.to(slot)
        return replace(self, tensors=tensors)

    def select(self, clients: Sequence[str]) -> Cohort:
        """The sub-cohort of `clients`, in that order, padded as before."""
        rows = self.index(clients)
        members = tuple(self.members[i] for i in rows.tolist())
        tensors = {
            name: value.index_select(0, rows.to(value.device))
            for name, value in self.tensors.items()
        }
        deltas = {client: self.deltas[client] for client in clients if client in self.deltas}
        return replace(self, members=members, tensors=tensors, deltas=deltas)


def _corner(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    return value[tuple(slice(0, size) for size in shape)].clone()


def adapter_shapes(layout: Layout, member: Member) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of one client's adapter."""
    shapes: dict[str, tuple[int, ...]] = {}
    for module, (d_in, d_out), rank in zip(
        layout.modules, layout.widths, member.ranks, strict=True
    ):
        shapes[f"lora_a/{module}"] = (rank, d_in)
        shapes[f"lora_b/{module}"] = (d_out, rank)
    for layer in layout.head if member.labels else ():
        rows = layer.d_out or member.labels
        shapes[f"head/{layer.name}.weight"] = (rows, layer.d_in)
        if layer.bias:
            shapes[f"head/{layer.name}.bias"] = (rows,)
    return shapes


def initial_adapter(layout: Layout, member: Member, seed: int) -> Adapter:
    """The starting adapter: the same draw for every client, cut to the client's sizes.

    A is uniform with the bound of a default linear layer and B is zero, so the adapter starts as
    no change. Draws are addressed by backbone and module and are prefix-stable: a client of rank
    r holds the first r rows of what a client of higher rank holds.
    """
    adapter: Adapter = {}
    for name, shape in adapter_shapes(layout, member).items():
        address = generator(seed, "init", layout.backbone, name)
        if name.startswith("lora_a/"):
            draw = address.uniform(-1.0, 1.0, size=shape) / shape[1] ** 0.5
        elif name.startswith("head/") and name.endswith(".weight"):
            draw = address.standard_normal(size=shape) * HEAD_STD
        else:
            adapter[name] = torch.zeros(shape, dtype=torch.float64)
            continue
        adapter[name] = torch.from_numpy(draw)
    return adapter


def initial_cohort(
    layout: Layout,
    members: Sequence[Member],
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Cohort:
    """A cohort of initial adapters, padded to the largest ranks and label count."""
    ordered = tuple(sorted(members, key=lambda member: member.id))
    shapes = [adapter_shapes(layout, member) for member in ordered]
    names = sorted({name for shape in shapes for name in shape})
    tensors = {}
    for name in names:
        sizes = zip(*(shape[name] for shape in shapes if name in shape), strict=True)
        padded = (len(ordered), *(max(size) for size in sizes))
        tensors[name] = torch.zeros(padded, dtype=dtype, device=device)
    empty = Cohort(layout, ordered, tensors)
    return empty.put({member.id: initial_adapter(layout, member, seed) for member in ordered})


def restart(cohort: Cohort, clients: Iterable[str], seed: int) -> Cohort:
    """The cohort with the factors of `clients` back at the shared start; heads stay."""
    members = {member.id: member for member in cohort.members}
    starts = {client: initial_adapter(cohort.layout, members[client], seed) for client in clients}
    return cohort.put(
        {
            client: {name: value for name, value in start.items() if name.startswith("lora_")}
            for client, start in starts.items()
        }
    )


def adapter_sha256(adapter: Mapping[str, Tensor]) -> str:
    """A hash of one adapter's names, shapes and bits."""
    return tensors_sha256(adapter)
