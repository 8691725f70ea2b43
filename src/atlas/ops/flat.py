"""The tensors of a stack as columns of one, so that an update is a few operations for all of them.

Letters in shapes: n rows, P numbers of a row in all tensors together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Columns:
    """Which columns are which tensor's.

    Attributes:
        shapes: Of a row of each tensor, in their order.
    """

    shapes: Mapping[str, torch.Size]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Columns:
        """The columns of tensors whose dimension 0 is the row."""
        return cls({name: value.shape[1:] for name, value in tensors.items()})

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A copy of the tensors side by side [n, P]."""
        return torch.cat([tensors[name].flatten(1) for name in self.shapes], dim=1)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors that [n, P] consists of; what is written to it is written to them."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), torch.split(flat, sizes, dim=1), strict=True)
        return {name: torch.unflatten(part, 1, shape) for (name, shape), part in parts}

    def each(self, value: Callable[[str], Tensor], like: Tensor) -> Tensor:
        """What belongs to a name, a number or one a row [n], in all its columns [n, P]."""
        found = torch.empty_like(like)
        for name, view in self.views(found).items():
            view.copy_(value(name).reshape(-1, *[1] * (view.dim() - 1)).expand_as(view))
        return found
