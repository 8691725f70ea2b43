"""What adapters add to linear modules, row by row of a stack.

Letters in shapes: n rows, R rank, D_in and D_out widths of a module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Change:
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

    def of(self, x: Tensor) -> Tensor:
        """What is added for inputs [n, tokens, D_in], [n, tokens, D_out]."""
        change = torch.bmm(torch.bmm(x, self.a.transpose(1, 2)), self.b.transpose(1, 2))
        if not self.dense:
            return change
        # Row by row: a batched product would copy every client's dense change.
        pairs = zip(change, x, self.dense, strict=True)
        return torch.stack([c if d is None else c + row @ d.T for c, row, d in pairs])

    def hook(self) -> Any:  # noqa: ANN401 - torch's hook type
        """A forward hook that adds the change to a module's output."""

        def add(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            del module
            x = args[0].reshape(self.a.shape[0], -1, self.a.shape[2]).to(self.a.dtype)
            return output + self.of(x).reshape(output.shape).to(output.dtype)

        return add
