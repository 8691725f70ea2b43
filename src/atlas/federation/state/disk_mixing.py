"""What mixing does to one module, or to one tensor of a head, on a shelf.

Each is told to let some clients keep theirs, to mix a portion, or to add up a mixture of many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from atlas.federation.state.disk import Generation
from atlas.ops.gauges import receive
from atlas.ops.graph.portions import Heavy, Portion
from atlas.ops.graph.sparse_rows import Places
from atlas.ops.lowrank.leading import leading_of_dense
from atlas.ops.lowrank.mixing_sparse import linear_rows, mix_received
from atlas.ops.span import Layer, used_slots


class Mixed(Protocol):
    """Something on a shelf that W acts on."""

    def keep(self, clients: Places) -> None:
        """Let some clients keep theirs, bit for bit."""
        ...

    def mix(self, portion: Portion) -> None:
        """Mix for the receivers of a portion."""
        ...

    def mix_many(self, heavy: Heavy) -> None:
        """Mix over, or for, more clients than fit into memory."""
        ...


@dataclass(frozen=True)
class ModuleOnShelf:
    """The factors of one module, mixed as products.

    Attributes:
        old: What is mixed.
        made: Where mixtures go.
        name: The module's.
        ranks: Of every client [n].
        alpha: A client's scale is alpha over its rank.
        most: Clients in memory at a time.
    """

    old: Generation
    made: Generation
    name: str
    ranks: Tensor
    alpha: float
    most: int

    def keep(self, clients: Places) -> None:
        """Copy the factors."""
        for factor in ("lora_a", "lora_b"):
            _copy(self.old, self.made, f"{factor}/{self.name}", clients)

    def mix(self, portion: Portion) -> None:
        """Batched factorisations of the few adapters in each mixture."""
        layer = self._layer(portion.needed)
        found = mix_received(layer, portion.rows, portion.which, portion.places)
        self._write(portion.clients, *found)

    def mix_many(self, heavy: Heavy) -> None:
        """One factorisation of the sum, whatever the number of clients in it or for it."""
        total = torch.zeros(1, 1, dtype=torch.float64)
        for start in range(0, len(heavy.mixed), self.most):
            some = slice(start, start + self.most)
            layer = self._layer(heavy.mixed[some])
            slots = used_slots(layer.a, layer.b, layer.ranks)
            strength = torch.from_numpy(heavy.weights[some]) * layer.scales
            total = total + (slots.columns * strength[slots.owner][:, None]).T @ slots.rows
        leading = leading_of_dense(total[None], int(self.ranks.max()))
        for clients in _cut(heavy.clients, self.most):
            which = torch.zeros(len(clients), dtype=torch.long)
            self._write(clients, *receive(leading, which, self._layer(clients)))

    def _layer(self, clients: Places) -> Layer:
        a, b = (self.old.read(f"{factor}/{self.name}", clients) for factor in ("lora_a", "lora_b"))
        ranks = self.ranks[torch.from_numpy(clients)]
        return Layer(a, b, ranks, self.alpha / ranks.to(torch.float64))

    def _write(self, clients: Places, a: Tensor, b: Tensor) -> None:
        self.made.write(f"lora_a/{self.name}", clients, a)
        self.made.write(f"lora_b/{self.name}", clients, b)


@dataclass(frozen=True)
class TensorOnShelf:
    """One tensor of a head, mixed as it is; attributes as in `ModuleOnShelf`."""

    old: Generation
    made: Generation
    name: str
    most: int

    def keep(self, clients: Places) -> None:
        """Copy the tensor."""
        _copy(self.old, self.made, self.name, clients)

    def mix(self, portion: Portion) -> None:
        """Sums over the few clients in each mixture."""
        values = self.old.read(self.name, portion.needed)
        mixed = linear_rows(values.flatten(1), portion.rows)
        self._write(portion.clients, mixed[torch.from_numpy(portion.which)])

    def mix_many(self, heavy: Heavy) -> None:
        """One sum for all receivers."""
        total = torch.zeros(1, dtype=torch.float64)
        for start in range(0, len(heavy.mixed), self.most):
            some = slice(start, start + self.most)
            values = self.old.read(self.name, heavy.mixed[some]).flatten(1).to(torch.float64)
            total = total + torch.from_numpy(heavy.weights[some]) @ values
        for clients in _cut(heavy.clients, self.most):
            self._write(clients, total.expand(len(clients), -1))

    def _write(self, clients: Places, flat: Tensor) -> None:
        shape = self.old.specs[self.name].shape
        self.made.write(self.name, clients, flat.reshape(len(clients), *shape))


def _copy(old: Generation, made: Generation, name: str, clients: Places) -> None:
    made.write(name, clients, old.read(name, clients))


def _cut(clients: Places, most: int) -> Iterator[Places]:
    for start in range(0, len(clients), most):
        yield clients[start : start + most]
