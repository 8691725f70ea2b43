"""From the tensors of a stack to what each module adds: plain adapters, cores, and gates over two.

Everything becomes B (A x + offset) with some A, B and offset of each row:

- a plain adapter as it is, B scaled;
- a core as A' = (P - I) A, offset Q - (P - I) shift, and the frozen B;
- with something beside it and a gate that is one number, both adapters with their ranks side by
  side, weighed by 1 - beta and beta. Two cores share A and B, so it is one core again;
- with a gate that looks at the token, both side by side, weighed when the token is known.

A gate acts as zero, and gets no gradient, where nothing was delivered yet: it would learn to shut
out what has not come.

Letters in shapes: n rows, R rank, D_in and D_out widths of a module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from atlas.federation.adapters.adapter import Frozen, Layout, bias_name, gate_name
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.adapters.lora_hooks import LoraChange, TokenGate


@dataclass(frozen=True)
class Beside:
    """What was delivered to stand beside the adapters of a stack's rows.

    Attributes:
        tensors: As in a cohort, zero in rows that got nothing.
        ready: One where something was delivered, by row and module [n, modules].
    """

    tensors: Mapping[str, Tensor]
    ready: Tensor

    @classmethod
    def of(cls, cohorts: Sequence[Cohort]) -> Beside | None:
        """What stands beside the adapters of cohorts, one after another; None if nothing ever."""
        like = next((cohort.slot.cohort for cohort in cohorts if cohort.slot), None)
        if like is None:
            return None
        parts: dict[str, list[Tensor]] = {name: [] for name in like.tensors}
        ready = []
        for cohort in cohorts:
            came = cohort.slot.ready if cohort.slot else {}
            for client in cohort.clients:
                modules = came.get(client, frozenset())
                ready.append([float(module in modules) for module in cohort.layout.modules])
            for name, some in parts.items():
                shape = (len(cohort.clients), *like.tensors[name].shape[1:])
                empty = like.tensors[name].new_zeros(shape)
                some.append(cohort.slot.cohort.tensors[name] if cohort.slot else empty)
        device = next(iter(like.tensors.values())).device
        tensors = {name: torch.cat(some) for name, some in parts.items()}
        return cls(tensors, torch.tensor(ready, device=device))

    def rows(self, index: Tensor) -> Beside:
        """Of some rows only."""
        tensors = {name: value.index_select(0, index) for name, value in self.tensors.items()}
        return Beside(tensors, self.ready.index_select(0, index))


class StackedRows(Protocol):
    """What is read of a stack; see `batching.forward.Stack`."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """By name, dimension 0 the row."""
        ...

    @property
    def scales(self) -> tuple[Tensor, ...]:
        """Of each row, one vector per module."""
        ...

    @property
    def deltas(self) -> tuple[Mapping[str, Tensor], ...]:
        """Dense changes of each row by module."""
        ...

    @property
    def beside(self) -> Beside | None:
        """What was delivered."""
        ...


def changes_of(
    layout: Layout, bases: Mapping[str, Frozen], rows: StackedRows
) -> dict[str, LoraChange]:
    """What the adapters of a stack add, by module."""
    found = {}
    for i, module in enumerate(layout.modules):
        dense = [row.get(module) for row in rows.deltas]
        whole = dense if any(d is not None for d in dense) else ()
        own = _Low.of(layout, i, bases, rows.tensors, rows.scales[i])
        if layout.gate == "none" or rows.beside is None:
            found[module] = LoraChange(own.a, own.b, whole, own.offset)
            continue
        given = _Low.of(layout, i, bases, rows.beside.tensors, rows.scales[i])
        gate, ready = rows.tensors[gate_name(module)], rows.beside.ready[:, i].to(own.b.dtype)
        if layout.gate == "input":
            both = own.and_also(given)
            token = TokenGate(gate, ready, own.a.shape[1])
            found[module] = LoraChange(both.a, both.b, whole, both.offset, token)
            continue
        beta = torch.sigmoid(gate[:, 0]) * ready
        if layout.place(i):
            both = own.blend(given, beta)
        else:
            both = own.times(1 - beta).and_also(given.times(beta))
        found[module] = LoraChange(both.a, both.b, whole, both.offset)
    return found


def scalar_betas(layout: Layout, rows: StackedRows) -> Tensor:
    """What stands beside counts in every row and module [n, modules], where a gate is a number."""
    if rows.beside is None or layout.gate != "scalar":
        raise ValueError("there is no gate that is one number")
    gates = torch.stack([rows.tensors[gate_name(module)][:, 0] for module in layout.modules], 1)
    return torch.sigmoid(gates) * rows.beside.ready.to(gates.dtype)


@dataclass(frozen=True)
class _Low:
    """One adapter of each row in one module: B (A x + offset)."""

    a: Tensor
    b: Tensor
    offset: Tensor | None

    @classmethod
    def of(
        cls,
        layout: Layout,
        i: int,
        bases: Mapping[str, Frozen],
        tensors: Mapping[str, Tensor],
        scales: Tensor,
    ) -> _Low:
        first, second = (tensors[name] for name in layout.parts(i))
        module = layout.modules[i]
        if layout.place(i):
            a, b, shift = (part.to(first) for part in bases[module])
            return cls(first @ a, b.expand(len(first), *b.shape), second - first @ shift)
        b = second * scales.to(second.dtype)[:, None, None]
        if not layout.biased:
            return cls(first, b, None)
        # A constant is one more rank, which looks at nothing and is always on.
        n, _, width = first.shape
        bias = tensors[bias_name(module)] * scales.to(second.dtype)[:, None]
        on = torch.cat([first.new_zeros(n, first.shape[1]), first.new_ones(n, 1)], 1)
        a = torch.cat([first, first.new_zeros(n, 1, width)], 1)
        return cls(a, torch.cat([b, bias[:, :, None]], 2), on)

    def and_also(self, other: _Low) -> _Low:
        """Both, their ranks side by side."""
        offset = None
        if self.offset is not None and other.offset is not None:
            offset = torch.cat([self.offset, other.offset], 1)
        return _Low(torch.cat([self.a, other.a], 1), torch.cat([self.b, other.b], 2), offset)

    def times(self, factors: Tensor) -> _Low:
        """What it adds, times a factor of each row."""
        return _Low(self.a, self.b * factors[:, None, None], self.offset)

    def blend(self, other: _Low, share: Tensor) -> _Low:
        """(1 - share) of this and share of another one with the same B."""
        a = torch.lerp(self.a, other.a, share[:, None, None])
        assert self.offset is not None and other.offset is not None
        return _Low(a, self.b, torch.lerp(self.offset, other.offset, share[:, None]))
