"""What the blocks of a model take at one batch: one of them is run, and its bytes are counted.

Blocks of a model are alike, so a few passes through one or two tell what a step of any depth
takes. They are run as training runs them: packed, on attention pages, adapters on, forward and
backward. Their numbers depend on the shape of the batch alone, never on its texts or on the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from atlas.federation.adapters.adapter import Member
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.batching.backbone import Inputs
from atlas.federation.batching.forward import (
    Batch,
    Model,
    Stack,
    run_blocks,
    run_top,
    stack_cohorts,
)
from atlas.federation.batching.packing import ALIGNED, Packing, pack
from atlas.federation.batching.prefix_cache import run_prefix
from atlas.runs.peak_memory import count_memory, peak_bytes

MORE = 4
"""Ranks by which adapters grow to see what a rank takes."""


@dataclass(frozen=True)
class LargestBatch:
    """The most a batch of a client's texts holds.

    Attributes:
        lengths: Tokens of its texts.
        answers: Tokens that carry a loss in each of them, for causal tasks; none for
            classification. A loss takes as many numbers as there are words to choose from, so the
            longest answer for every text would be far too much where most are short.
    """

    lengths: tuple[int, ...]
    answers: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Places of the packed row that the texts make."""
        return -(-sum(self.lengths) // ALIGNED) * ALIGNED


@dataclass(frozen=True)
class BlockBytes:
    """Bytes of a step at one batch, without weights and whatever trained numbers take.

    Attributes:
        below: Most while texts pass the blocks without adapters.
        one: Most of forward and backward through one whole block, the batch included.
        each: What every further whole block keeps.
        read: Most in the last block and above it, where a head or a vocabulary reads; the batch
            included.
        read_rank: What that grows by with every rank of the last block's adapters. They may see
            all tokens or only those that are read, so it is measured.
    """

    below: int
    one: int
    each: int
    read: int
    read_rank: int

    def reading(self, whole: int) -> int:
        """Most in the last block, with so many whole ones below it."""
        return self.read + whole * self.each

    def topmost(self, whole: int) -> int:
        """Most in the highest of so many whole blocks; backward has freed what is above it."""
        return self.one + (whole - 1) * self.each


class StepMeter:
    """Measures the blocks of a model, each kind of batch once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._found: dict[tuple[LargestBatch, int], BlockBytes] = {}

    def measure(self, batch: LargestBatch, member: Member) -> BlockBytes:
        """What the blocks take at a batch of a client with so many labels."""
        key = (batch, member.labels)
        if key not in self._found:
            self._found[key] = measure_blocks(self.model, batch, member)
        return self._found[key]


def measure_blocks(model: Model, batch: LargestBatch, member: Member) -> BlockBytes:
    """Run blocks on a batch of that shape, with adapters of the smallest rank."""
    device, top = model.backbone.device, model.backbone.depth - 1
    stack, larger = (_stack(model, member, rank) for rank in (1, 1 + MORE))
    one = each = 0
    if top > model.first_block:
        one, each = _through(model, stack, batch, range(top - 1, top), back=True)
    if top - 1 > model.first_block:
        # The input of the lowest block and its mask are there once, however many follow.
        _, two = _through(model, stack, batch, range(top - 2, top), back=False)
        each = two - each
    read, more = (
        peak_bytes(partial(_read, model, some, batch), device) for some in (stack, larger)
    )
    return BlockBytes(
        below=peak_bytes(lambda: _below(model, batch), device),
        one=one,
        each=each,
        read=read,
        read_rank=-(-(more - read) // MORE),
    )


def _through(
    model: Model, stack: Stack, shape: LargestBatch, blocks: range, *, back: bool
) -> tuple[int, int]:
    """Most bytes of a pass through whole blocks, and back if asked; and what they keep for that."""
    with count_memory(model.backbone.device) as memory, torch.enable_grad():
        batch = _batch(model, stack, shape)
        before = memory.held
        # What comes from blocks with adapters asks for a gradient.
        hidden = batch.hidden.requires_grad_(blocks.start > model.first_block)
        out = run_blocks(model, stack, batch.at(hidden), blocks)
        kept = memory.held - before
        total = out.sum()
        del out  # nobody holds it on the way back, nor the gradient that comes from above
        if back:
            _gradients(total, stack, hidden)
    return memory.highest, kept


def _read(model: Model, stack: Stack, shape: LargestBatch) -> None:
    """A pass through the last block, what reads it, and back."""
    top = model.backbone.depth - 1
    with torch.enable_grad():
        batch = _batch(model, stack, shape)
        hidden = batch.hidden.requires_grad_(top > model.first_block)
        losses = run_top(model, stack, batch.at(hidden), top).client_losses()
        _gradients(losses.sum(), stack, hidden)


def _below(model: Model, shape: LargestBatch) -> Tensor:
    """A pass through blocks without adapters, of which two take as much as many."""
    backbone, packing = model.backbone, _pack(model, shape)
    ids = torch.zeros(packing.mask.shape, dtype=torch.long, device=backbone.device)
    with torch.no_grad():
        where = torch.zeros_like(ids)  # which of a store's tokens these are
        inputs = Inputs(ids, packing.mask, torch.zeros_like(ids))
        hidden = run_prefix(backbone, inputs, min(2, model.first_block))
        del where
        return packing.gather(hidden)


def _gradients(total: Tensor, stack: Stack, hidden: Tensor) -> None:
    wanted = [*stack.tensors.values(), *([hidden] if hidden.requires_grad else [])]
    torch.autograd.grad(total, wanted, allow_unused=True)


def _stack(model: Model, member: Member, rank: int) -> Stack:
    """The client's adapter, of one rank everywhere and ready for gradients."""
    backbone, layout = model.backbone, model.layout
    sized = replace(member, ranks=(rank,) * len(layout.modules))
    dtype = torch.promote_types(backbone.dtype, torch.float32)
    stack = stack_cohorts([initial_cohort(layout, [sized], 0, dtype=dtype, device=backbone.device)])
    leaves = {name: value.requires_grad_() for name, value in stack.tensors.items()}
    return replace(stack, tensors=leaves)


def _pack(model: Model, shape: LargestBatch) -> Packing:
    lengths = np.array([shape.lengths], dtype=np.int64)
    return pack(lengths, np.ones_like(lengths, dtype=bool), model.backbone.device).packing


def _batch(model: Model, stack: Stack, shape: LargestBatch) -> Batch:
    """A batch of that shape; of causal tasks, every text ends in its answer."""
    backbone, packing = model.backbone, _pack(model, shape)
    count, device = len(shape.lengths), backbone.device
    hidden = torch.zeros(
        1, packing.real.shape[1], backbone.width, dtype=backbone.dtype, device=device
    )
    targets = None
    if not stack.labels.any():
        targets = torch.full(packing.real.shape, -100, device=device)
        answers = shape.answers or (1,) * count
        ends = np.cumsum(shape.lengths)
        for end, length, answer in zip(ends, shape.lengths, answers, strict=True):
            targets[0, end - min(length, max(1, answer)) : end] = 0
    present = torch.ones(1, count, dtype=torch.bool, device=device)
    labels = torch.zeros(1, count, dtype=torch.long, device=device)
    return Batch(hidden, packing, present, labels, targets)
