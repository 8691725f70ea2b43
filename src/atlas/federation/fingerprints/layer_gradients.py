"""Gradients with respect to frozen linear layers, from what hooks catch of their calls.

The gradient of a loss with respect to a linear layer's weight is a sum over tokens of (gradient of
its output) x (its input). Both pass by in an ordinary pass, so the frozen weights need no gradients
of their own, and only the layers that are looked at cost anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from atlas.federation.batching.forward import Model

Calls = dict[str, list[tuple[Tensor, Tensor]]]
"""Input and output of every call of a module, by its name."""


def last_linears(model: Model, blocks: int) -> dict[str, nn.Linear]:
    """The linear modules of a model's last blocks, by full name."""
    depth = model.backbone.depth
    found: dict[str, nn.Linear] = {}
    for block in range(depth - blocks, depth):
        found |= model.backbone.linears(block)
    return found


@contextmanager
def catch_calls(linears: Mapping[str, nn.Linear]) -> Iterator[Calls]:
    """Inputs and outputs of linear modules, caught as they are computed."""
    calls: Calls = {}
    handles = []

    def hook_for(name: str) -> Any:  # noqa: ANN401 - torch's hook type
        def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            del module
            calls.setdefault(name, []).append((args[0], output))

        return keep

    try:
        for name, linear in linears.items():
            handles.append(linear.register_forward_hook(hook_for(name)))
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def layer_gradients(
    total: Tensor, calls: Calls, others: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The gradient of `total` with respect to the weight of every caught layer.

    Args:
        total: A scalar.
        calls: As `catch_calls` gave them.
        others: Tensors whose own gradients are wanted too, such as a head, by name.
    """
    # What does not depend on the text, such as tokens that a layer always reads, has no gradient.
    listed = [(name, *call) for name, own in calls.items() for call in own if call[1].requires_grad]
    extra = others or {}
    wanted = [output for _, _, output in listed] + list(extra.values())
    found = torch.autograd.grad(total, wanted, retain_graph=True, materialize_grads=True)
    gradients: dict[str, Tensor] = {}
    for (name, inputs, _), out in zip(listed, found, strict=False):
        x = inputs.detach().flatten(0, -2)
        own = out.flatten(0, -2).to(x.dtype).T @ x
        # A model may call a module more than once: the gradient is the sum over its calls.
        gradients[name] = gradients[name] + own if name in gradients else own
    return gradients | dict(zip(extra, found[len(listed) :], strict=True))
