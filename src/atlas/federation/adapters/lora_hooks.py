"""What adapters add to linear modules, row by row of a stack.

Letters in shapes: n rows, R rank, D_in and D_out widths of a module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
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
class LoraChange:
    """One module's changes.

    Attributes:
        a: [n, R, D_in].
        b: Scaled [n, D_out, R].
        dense: A whole change of each row [D_out, D_in] beside that, or None; empty if no row has
            one.
    """

    a: Tensor
    b: Tensor
    dense: Sequence[Tensor | None] = ()

    def onto(self, output: Tensor, x: Tensor) -> Tensor:
        """A module's output [n, tokens, D_out] with what is added for its inputs."""
        low = torch.bmm(x.to(self.a.dtype), self.a.transpose(1, 2))
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
        return LoraChange(self.a[here], self.b[here], self.dense[here])


@dataclass(frozen=True)
class Projected:
    """What a block's projections are for its input, known before adapters have their say.

    Attributes:
        values: Queries, keys and values of the frozen modules [n, S, .].
        changes: What adapters add, by module.
    """

    values: tuple[Tensor, ...]
    changes: Mapping[str, LoraChange]
