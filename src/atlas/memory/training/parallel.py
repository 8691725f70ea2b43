"""One model trained by several processes, each on its rows of every batch.

A batch is the same as in one process, and every process takes its rows of it. Losses are sums over
a process's own answers divided by the mean number of answers per process, so that their mean over
processes is the loss of the whole batch, however unequal the rows are.

- `ddp`: every process has the whole model; torch's DistributedDataParallel averages gradients.
- `fsdp`: every process has a part of each weight and gathers a block's weights while it is run
  (torch's `fully_shard`): for models that one device does not hold.

An objective may run a model several times before its gradients are whole (episodes do), so DDP is
not asked to average while a backward pass is under way, but once, when they are.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from atlas.runs.ranks import ALONE, Ranks

ParallelName = Literal["ddp", "fsdp"]


class Parallel(Protocol):
    """How a model is trained by all processes together."""

    ranks: Ranks

    def finish_gradients(self) -> None:
        """Make whole gradients of those of this process's rows."""
        ...


class OneProcess:
    """There are no others."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        """Of a process alone, or of one whose gradients are whole as they come."""
        self.ranks = ranks

    def finish_gradients(self) -> None:
        """They are whole."""


class _EveryParameter(nn.Module):
    """A model of which all that is wanted is that a gradient of zero reaches every parameter."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> Tensor:
        """Zero, as a sum over all parameters."""
        return torch.stack([(value * 0).sum() for value in self.model.parameters()]).sum()


class AveragedGradients:
    """Every process has the whole model; gradients are averaged once they are complete."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        """With a model that is the same in all processes."""
        self.model, self.ranks = model, ranks
        self.averaging = nn.parallel.DistributedDataParallel(_EveryParameter(model))

    def finish_gradients(self) -> None:
        """Add a gradient of zero to each, upon which DDP averages what there is."""
        without = [value for value in self.model.parameters() if value.grad is None]
        self.averaging().backward()
        # What had none has none in any process, and is not to be moved by weight decay.
        for value in without:
            value.grad = None


def shard(model: Any, ranks: Ranks) -> None:  # noqa: ANN401 - an `AtlasForCausalLM`
    """Leave each process its part of every weight, block by block; the model changes in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device, (ranks.count,))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    # Also what is outside blocks is divided again at once: between passes all weights are parts.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def is_part(value: Tensor) -> bool:
    """Whether a tensor is this process's part of a larger one."""
    return hasattr(value, "full_tensor")


def whole(part: Tensor) -> Tensor:
    """A tensor as it is in one process; all processes must ask for the parts of one at once."""
    gather = getattr(part, "full_tensor", None)
    found: Tensor = part if gather is None else gather()
    return found


def like(tensor: Tensor, value: Tensor) -> Tensor:
    """A whole tensor as this process's part of it, where `value` is one; else itself, placed."""
    if not is_part(value):
        return tensor.to(value.device, copy=True)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(value, DTensor)
    placed: Tensor = distribute_tensor(
        tensor.to(value.device, copy=True), value.device_mesh, value.placements
    )
    return placed
