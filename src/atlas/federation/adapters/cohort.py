"""All adapters of the clients that share a backbone, stacked and zero-padded.

Every tensor of a cohort has the client as dimension 0: A [n, R, d_in], B [n, d_out, R], cores
[n, R, R] and [n, R], weights [n, L, d_in] and biases [n, L] of heads, with R the largest rank and L
the largest label count.
Slots a client does not use are zero and stay zero under any optimiser step, so a padded cohort
trains exactly like n separate adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from atlas.federation.adapters.adapter import (
    Adapter,
    Layout,
    Member,
    adapter_shapes,
    body_of,
    initial_adapter,
    is_gate,
    is_head,
)
from atlas.ops.lowrank.factors import Layer

Trains = Literal["both", "b"]
"""Which factors local training moves: A and B, or B alone, with A left as drawn."""


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
        slot: What was delivered to stand beside the clients' own adapters, where a gate weighs the
            two; None where mixtures take the adapters' places.
    """

    layout: Layout
    members: tuple[Member, ...]
    tensors: dict[str, Tensor]
    trains: Trains = "both"
    deltas: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    slot: Slot | None = None

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Client ids in stacking order."""
        return tuple(member.id for member in self.members)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Positions in the stack by client id."""
        return {client: row for row, client in enumerate(self.clients)}

    @property
    def place(self) -> TensorPlace:
        """Where a cohort made like this one is kept."""
        return InMemory()

    def ranks(self, module: int) -> Tensor:
        """Every client's rank in one module, [n]."""
        return torch.tensor([member.ranks[module] for member in self.members])

    def scales(self, module: int) -> Tensor:
        """Every client's alpha / rank in one module, float64 [n]; of a core one."""
        ranks = self.ranks(module).to(torch.float64)
        return torch.ones_like(ranks) if self.layout.place(module) else self.layout.alpha / ranks

    def layer(self, module: int) -> Layer:
        """One module's factors with every client's rank and scale, all on one device.

        A core [P - I, Q] is told as I times itself: what is around it is orthonormal and the same
        for all, so norms of and distances between such products are those of the changes.
        """
        a, b = (self.tensors[name] for name in self.layout.parts(module))
        if self.layout.place(module):
            a, size = torch.cat([a, b[:, :, None]], dim=2), b.shape[1]
            b = torch.eye(size, dtype=a.dtype, device=a.device).expand(len(a), size, size)
        return Layer(a, b, self.ranks(module).to(a.device), self.scales(module).to(a.device))

    def index(self, clients: Sequence[str]) -> Tensor:
        """Positions of `clients` in the stack."""
        return torch.tensor([self.places[name] for name in clients], dtype=torch.long)

    def take(self, client: str) -> Adapter:
        """One client's adapter, unpadded copies."""
        row = self.places[client]
        shapes = adapter_shapes(self.layout, self.members[row])
        corners = {name: _corner(self.tensors[name][row], s) for name, s in shapes.items()}
        return Adapter(corners)

    def put(self, adapters: Mapping[str, Mapping[str, Tensor]]) -> Cohort:
        """A cohort with the given clients' tensors replaced; tensors not given stay."""
        tensors = {name: value.clone() for name, value in self.tensors.items()}
        for client, adapter in adapters.items():
            put_row(tensors, self.places[client], adapter)
        return replace(self, tensors=tensors)

    def write(self, clients: Sequence[str], tensors: Mapping[str, Tensor]) -> Cohort:
        """A cohort with some clients' rows of stacked tensors replaced."""
        rows = self.index(clients)
        new = {k: v.index_copy(0, rows.to(v.device), tensors[k]) for k, v in self.tensors.items()}
        return replace(self, tensors=new)

    def fill(self, row: int, adapter: Mapping[str, Tensor]) -> None:
        """Write one client's tensors into a cohort that is still being made."""
        put_row(self.tensors, row, adapter)

    def release(self) -> None:
        """Give back memory that reading all of it took; here it is the cohort's own."""

    def apart(self) -> Cohort:
        """The same adapters, to be changed independently; here nothing is ever written into."""
        return self

    def select(self, clients: Sequence[str]) -> Cohort:
        """The sub-cohort of `clients`, in that order, padded as before."""
        rows = self.index(clients)
        members = tuple(self.members[i] for i in rows.tolist())
        tensors = {
            name: value.index_select(0, rows.to(value.device))
            for name, value in self.tensors.items()
        }
        deltas = {client: self.deltas[client] for client in clients if client in self.deltas}
        slot = self.slot and self.slot.select(clients)
        return replace(self, members=members, tensors=tensors, deltas=deltas, slot=slot)

    def without_heads(self) -> Cohort:
        """What a server that never sees heads and gates keeps."""
        members = tuple(replace(member, label_set=()) for member in self.members)
        tensors = {k: v for k, v in self.tensors.items() if not is_head(k) and not is_gate(k)}
        return replace(self, layout=self.layout.beside(), members=members, tensors=tensors)


@dataclass(frozen=True)
class Slot:
    """What was delivered to clients to stand beside their own adapters; it is not trained.

    Attributes:
        cohort: The adapters, of the same clients and sizes; no change where nothing came yet.
        ready: Modules that something was delivered for, by client. Until then a gate acts as zero
            and is not trained.
    """

    cohort: Cohort
    ready: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def select(self, clients: Sequence[str]) -> Slot:
        """What stands beside the adapters of some clients, in that order."""
        return Slot(self.cohort.select(clients), self.ready)

    def take(self, adapters: Mapping[str, Mapping[str, Tensor]]) -> Slot:
        """With what was delivered to some clients; what is not given stays."""
        ready = dict(self.ready)
        layout = self.cohort.layout
        for client, adapter in adapters.items():
            came = {m for i, m in enumerate(layout.modules) if layout.parts(i)[0] in adapter}
            ready[client] = ready.get(client, frozenset()) | came
        return Slot(self.cohort.put(adapters), ready)

    def without(self, clients: Iterable[str]) -> Slot:
        """With nothing beside the adapters of some clients."""
        gone = set(clients)
        return replace(self, ready={c: r for c, r in self.ready.items() if c not in gone})


def _corner(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    return value[tuple(slice(0, size) for size in shape)].clone()


def put_row(tensors: Mapping[str, Tensor], row: int, adapter: Mapping[str, Tensor]) -> None:
    """Write one client's tensors into stacked ones, zeros beside them; those not given stay."""
    for name, value in adapter.items():
        slot = tensors[name][row]
        slot.zero_()
        slot[tuple(slice(0, size) for size in value.shape)] = value.to(slot)


class TensorPlace(Protocol):
    """Where the tensors of a cohort are kept."""

    def empty(
        self,
        layout: Layout,
        members: tuple[Member, ...],
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Cohort:
        """A cohort of zeros; `shapes` are those of the stacked tensors."""
        ...


class InMemory:
    """Where cohorts are that fit; see `TensorPlace`."""

    def empty(
        self,
        layout: Layout,
        members: tuple[Member, ...],
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Cohort:
        """A cohort of zeros."""
        zeros = {name: torch.zeros(s, dtype=dtype, device=device) for name, s in shapes.items()}
        return Cohort(layout, members, zeros)


def stacked_shapes(layout: Layout, members: Sequence[Member]) -> dict[str, tuple[int, ...]]:
    """The tensors of a cohort, padded to the largest ranks and label count."""
    shapes = [adapter_shapes(layout, member) for member in members]
    found = {}
    for name in sorted({name for shape in shapes for name in shape}):
        sizes = zip(*(shape[name] for shape in shapes if name in shape), strict=True)
        found[name] = (len(members), *(max(size) for size in sizes))
    return found


def initial_cohort(
    layout: Layout,
    members: Sequence[Member],
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    place: TensorPlace | None = None,
) -> Cohort:
    """A cohort of initial adapters, in memory unless another place is named."""
    ordered = tuple(sorted(members, key=lambda member: member.id))
    shapes = stacked_shapes(layout, ordered)
    made = (place or InMemory()).empty(layout, ordered, shapes, dtype, device)
    for row, member in enumerate(ordered):
        made.fill(row, initial_adapter(layout, member, seed))
    return made


def restart(cohort: Cohort, clients: Iterable[str], seed: int) -> Cohort:
    """The cohort with the factors of `clients` back at the shared start; heads stay."""
    members = {member.id: member for member in cohort.members}
    starts = {client: initial_adapter(cohort.layout, members[client], seed) for client in clients}
    return cohort.put({client: body_of(start) for client, start in starts.items()})
