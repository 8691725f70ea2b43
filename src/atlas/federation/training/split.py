"""Split training: a client runs the lower blocks, a server the rest and the loss.

In every step the client's activations go up and their gradients come down, as messages of the
ordinary codec. Both halves compute what an undivided step computes, so the result is the same;
what a client saves is the memory of the upper blocks. It does not save traffic: a step moves
2 * batch * length * width numbers (length the mean: padding is not sent), an adapter once a round.

The labels, or the answers, of a batch go up with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from atlas.federation.batching.forward import Batch, Model, Outcome, Stack, run_blocks, run_top
from atlas.federation.capacity.cost import block_of
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Direction

Gradients = dict[str, Tensor]


@dataclass
class Wire:
    """Carries tensors between the halves as bytes, and counts the tensors' and the messages'.

    Attributes:
        up: Bytes of messages from each row's client to the server.
        down: The other way.
        payload: Bytes of the tensors in all of them, without headers.
    """

    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    payload: int = 0

    def carry(
        self, values: Tensor, lengths: Sequence[int], owners: Sequence[int], way: Direction
    ) -> Tensor:
        """Activations or gradients [n, S, D] as they arrive on the other side.

        A client sends its own tokens, however many its neighbours in the stack have.
        """
        counts = self.up if way == "up" else self.down
        arrived = torch.zeros_like(values)
        for row, (length, owner) in enumerate(zip(lengths, owners, strict=True)):
            sent = values[row, :length].detach()
            message = encode({"values": sent}, {})
            counts[owner] = counts.get(owner, 0) + len(message)
            self.payload += sent.numel() * sent.element_size()
            arrived[row, :length] = decode(message).tensors["values"].to(values.device)
        return arrived


def split_gradients(
    model: Model, stack: Stack, batch: Batch, point: int, owners: Sequence[int], wire: Wire
) -> tuple[Outcome, Gradients]:
    """One step's losses, and the gradients of their sum, with the blocks divided at `point`.

    Gradients come down only if there is anything to train below the split.

    Args:
        model: The model; the client runs its blocks below `point`.
        stack: Adapters whose tensors ask for gradients.
        batch: The examples.
        point: Blocks on the client's side.
        owners: Whom each row belongs to, for the counts.
        wire: Counts what is carried.
    """
    lengths = batch.packing.real.sum(1).tolist()
    below = run_blocks(model, stack, batch, range(model.first_block, point))
    above = wire.carry(below, lengths, owners, "up").requires_grad_()
    first = max(point, model.first_block)
    outcome = run_top(model, stack, batch.at(above), first)
    total = outcome.client_losses().sum()
    names = list(stack.tensors)
    values = [stack.tensors[name] for name in names]
    *found, back = torch.autograd.grad(total, [*values, above], allow_unused=True)
    grads = {n: g for n, g in zip(names, found, strict=True) if g is not None}
    if below.requires_grad:
        given = wire.carry(back, lengths, owners, "down")
        lower = torch.autograd.grad(below, values, given, allow_unused=True)
        grads |= {n: g for n, g in zip(names, lower, strict=True) if g is not None}
    return outcome, {n: grads.get(n, torch.zeros_like(stack.tensors[n])) for n in names}


def lower_half(model: Model, stack: Stack, batch: Batch, point: int) -> None:
    """A client's half of a split step, for its memory: forward, backward, two moments a number."""
    layout = model.layout
    here = [i for i, module in enumerate(layout.modules) if block_of(module) < point]
    # A device has neither the adapters above nor anything made of them.
    lower = replace(
        layout,
        modules=tuple(layout.modules[i] for i in here),
        widths=tuple(layout.widths[i] for i in here),
        cores=tuple(layout.cores[i] for i in here) if layout.cores else (),
    )
    trained = {
        name: value.detach().requires_grad_()
        for name, value in stack.tensors.items()
        if on_device(name, point)
    }
    moments = [(torch.zeros_like(value), torch.zeros_like(value)) for value in trained.values()]
    moving = replace(stack, tensors=trained, scales=tuple(stack.scales[i] for i in here))
    below = run_blocks(replace(model, layout=lower), moving, batch, range(model.first_block, point))
    if below.requires_grad:
        torch.autograd.grad(below, list(trained.values()), torch.ones_like(below))
    del moments


def on_device(name: str, point: int) -> bool:
    """Whether a tensor is trained on the client's side of a split."""
    kind, _, module = name.partition("/")
    return kind != "head" and block_of(module) < point
