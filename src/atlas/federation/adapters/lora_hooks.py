"""What adapters add to linear modules, row by row of a stack.

Letters in shapes: n rows, R rank, D_in and D_out widths of a module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

_ROW: ContextVar[int | None] = ContextVar("row", default=None)
"""The row whose texts a model is given alone; None if it is given those of all rows."""


@contextmanager
def only_row(row: int) -> Iterator[None]:
    """Within this context and thread, hooked modules see the texts of one row and no others."""
    token = _ROW.set(row)
    try:
        yield
    finally:
        _ROW.reset(token)


@dataclass(frozen=True)
class TokenGate:
    """Weighs two adapters of a module, token by token: beta = sigmoid(w x) of the second.

    The mean over a text's tokens, which others take, would tell a causal model's first tokens what
    comes after them.

    Attributes:
        w: [n, D_in].
        ready: One where there is a second adapter, zero where beta acts as zero [n].
        first: Ranks of the first adapter; those after them are the second's.
    """

    w: Tensor
    ready: Tensor
    first: int

    def beta(self, x: Tensor) -> Tensor:
        """What the second adapter counts at every token of [n, tokens, D_in], [n, tokens, 1]."""
        looked = torch.bmm(x.to(self.w.dtype), self.w[:, :, None])
        return torch.sigmoid(looked) * self.ready[:, None, None]

    def weigh(self, low: Tensor, x: Tensor) -> Tensor:
        """What lies between A and B of both adapters [n, tokens, R], weighed."""
        beta = self.beta(x)
        own, given = low[..., : self.first], low[..., self.first :]
        return torch.cat([own * (1 - beta), given * beta], dim=2)


@dataclass(frozen=True)
class LoraChange:
    """One module's changes: B (A x + offset), and what stands beside it.

    Attributes:
        a: [n, R, D_in].
        b: Scaled [n, D_out, R].
        dense: A whole change of each row [D_out, D_in] beside that, or None; empty if no row has
            one.
        offset: What is added between A and B whatever the token, [n, R]; None for nothing.
        gate: Weighs the first ranks against the others; None if all count as they are.
    """

    a: Tensor
    b: Tensor
    dense: Sequence[Tensor | None] = ()
    offset: Tensor | None = None
    gate: TokenGate | None = None

    def onto(self, output: Tensor, x: Tensor) -> Tensor:
        """A module's output [n, tokens, D_out] with what is added for its inputs."""
        low = torch.bmm(x.to(self.a.dtype), self.a.transpose(1, 2))
        if self.offset is not None:
            low = low + self.offset[:, None]
        if self.gate is not None:
            low = self.gate.weigh(low, x)
        if output.dtype == self.b.dtype:
            found = torch.baddbmm(output, low, self.b.transpose(1, 2))
        else:
            found = output + torch.bmm(low, self.b.transpose(1, 2)).to(output.dtype)
        if not self.dense:
            return found
        # Row by row: a batched product would copy every client's dense change.
        triples = zip(found, x, self.dense, strict=True)
        return torch.stack(
            [
                one if whole is None else one + (row.to(whole.dtype) @ whole.T).to(one.dtype)
                for one, row, whole in triples
            ]
        )

    def hook(self) -> Any:  # noqa: ANN401 - torch's hook type
        """A forward hook that adds the change to a module's output."""

        def add(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            del module
            row = _ROW.get()
            change = self if row is None else self.of_row(row)
            rows = len(change.a)
            given = args[0].reshape(rows, -1, self.a.shape[2])
            return change.onto(output.reshape(rows, -1, output.shape[-1]), given).reshape(
                output.shape
            )

        return add

    def of_row(self, row: int) -> LoraChange:
        """What is added in one row."""
        here = slice(row, row + 1)
        offset, gate = self.offset, self.gate
        return LoraChange(
            self.a[here],
            self.b[here],
            self.dense[here],
            None if offset is None else offset[here],
            None if gate is None else replace(gate, w=gate.w[here], ready=gate.ready[here]),
        )


@dataclass(frozen=True)
class Projected:
    """What a block's projections are for its input, known before adapters have their say.

    Attributes:
        values: Queries, keys and values of the frozen modules [n, S, .].
        changes: What adapters add, by module.
    """

    values: tuple[Tensor, ...]
    changes: Mapping[str, LoraChange]
