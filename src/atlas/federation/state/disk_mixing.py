"""Adapters of very many clients on disk, mixed a module and a portion at a time.

What is in memory is a portion's factors, and nothing that grows with the number of clients but W,
ids and ranks. Adapters on disk have a cohort's names; beside them there are `ranks` [n, modules]
and `label_set` [n], equal numbers for equal label sets. Each module, and each tensor of a head, is
told to let some clients keep theirs, to mix a portion, or to add up a mixture of many.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from atlas.federation.adapters.adapter import factor_names, is_head
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.state.disk import DiskState, Generation, Spec
from atlas.ops.clustering.clusters import canonical
from atlas.ops.graph.portions import Heavy, MixingWork, Portion, divide
from atlas.ops.graph.sparse_rows import Places, SharedRows, restrict_groups
from atlas.ops.lowrank.factors import Layer, used_slots
from atlas.ops.lowrank.leading import leading_of_dense, receive
from atlas.ops.lowrank.mixing_sparse import linear_rows, mix_received
from atlas.runs.events import Progress


class Mixable(Protocol):
    """Something on disk that W acts on."""

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
class ModuleOnDisk:
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
        for name in factor_names(self.name):
            _copy(self.old, self.made, name, clients)

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
        a, b = (self.old.read(name, clients) for name in factor_names(self.name))
        ranks = self.ranks[torch.from_numpy(clients)]
        return Layer(a, b, ranks, self.alpha / ranks.to(torch.float64))

    def _write(self, clients: Places, a: Tensor, b: Tensor) -> None:
        for name, value in zip(factor_names(self.name), (a, b), strict=True):
            self.made.write(name, clients, value)


@dataclass(frozen=True)
class TensorOnDisk:
    """One tensor of a head, mixed as it is; attributes as in `ModuleOnDisk`."""

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


MOST = 2048
"""Clients whose factors of one module are in memory at a time, for each worker."""


def store_cohort(disk: DiskState, cohort: Cohort) -> Generation:
    """Put a cohort on disk."""
    layout, members = cohort.layout, cohort.members
    sets = canonical([member.label_set for member in members])
    tensors = {
        **{name: value.detach().cpu() for name, value in cohort.tensors.items()},
        "ranks": torch.tensor([member.ranks for member in members]),
        "label_set": torch.tensor(sets),
    }
    specs = {
        name: Spec(tuple(value.shape[1:]), str(value.dtype).removeprefix("torch."))
        for name, value in tensors.items()
    }
    facts = {"modules": list(layout.modules), "alpha": layout.alpha}
    with disk.renew(cohort.clients, specs, facts) as made:
        for name, value in tensors.items():
            made.write(name, slice(None), value)
    return disk.latest()


def mix_on_disk(
    disk: DiskState,
    weights: SharedRows,
    *,
    workers: int = 1,
    most: int = MOST,
    progress: Progress | None = None,
) -> Generation:
    """Apply W to all adapters on disk in product space, and to heads within label sets.

    Args:
        disk: Its last generation is mixed; the mixture becomes the last generation.
        weights: W.
        workers: Portions mixed at the same time.
        most: Clients in memory at a time, for each worker.
        progress: Told after every module and every tensor of the head.
    """
    old = disk.latest()
    alpha, modules = float(old.facts["alpha"]), list(old.facts["modules"])
    heads = [name for name in old.specs if is_head(name)]
    work = divide(weights, most)
    with (
        disk.renew(old.clients, old.specs, old.facts) as made,
        ThreadPoolExecutor(workers) as pool,
    ):
        ranks, sets = (old.read(name, slice(None)) for name in ("ranks", "label_set"))
        made.write("ranks", slice(None), ranks)
        made.write("label_set", slice(None), sets)
        total = len(modules) + len(heads)
        for number, module in enumerate(modules):
            one = ModuleOnDisk(old, made, module, ranks[:, number], alpha, most)
            _do(pool, one, work, most)
            if progress:
                progress("mixing", number + 1, total)
        within = divide(restrict_groups(weights, sets.numpy()), most)
        for number, name in enumerate(heads, len(modules)):
            _do(pool, TensorOnDisk(old, made, name, most), within, most)
            if progress:
                progress("mixing", number + 1, total)
    return disk.latest()


def _do(pool: ThreadPoolExecutor, one: Mixable, work: MixingWork, most: int) -> None:
    own = [work.own[start : start + most] for start in range(0, len(work.own), most)]
    for done in (
        pool.map(one.keep, own),
        pool.map(one.mix, work.portions),
        pool.map(one.mix_many, work.heavy),
    ):
        for _ in done:
            pass  # an error in a worker is raised here
