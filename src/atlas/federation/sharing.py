"""Gradients of a step, its texts divided among the cores that are free for it.

Losses of a batch add up over its texts, and so do their gradients: each core takes some texts of
every row, and the sums are those of the undivided step. Where all cores are busy with rows of their
own, there is one share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from atlas.federation.forward import Stack, run
from atlas.federation.split import Gradients
from atlas.federation.store import ExampleStore, Rows
from atlas.ops.parallel import cores_for


@dataclass(frozen=True)
class _Sums:
    """Of one share of the texts: losses and what they are divided by [n], and gradients."""

    losses: Tensor
    counts: Tensor
    grads: Sequence[Tensor]


def shared_gradients(
    store: ExampleStore, stack: Stack, picks: Sequence[Rows]
) -> tuple[Tensor, Gradients]:
    """Mean losses of the rows of a stack [n], and the gradients of their sum.

    Args:
        store: Where the examples are.
        stack: Adapters whose tensors ask for gradients.
        picks: The examples of each row.
    """
    values = list(stack.tensors.values())

    def add_up(own: ExampleStore, share: Sequence[Rows]) -> _Sums:
        outcome = run(own.model, stack, own.batch(share))
        losses = outcome.losses.sum(1)
        grads = torch.autograd.grad(losses.sum(), values)
        return _Sums(losses.detach(), outcome.counts.sum(1), grads)

    shares = deal_texts(store, picks, cores_for(store.labels.device))
    parts = store.on_cores(add_up, shares) if len(shares) > 1 else [add_up(store, picks)]
    # In the order of the shares, not of their ends: sums are the same bits every time.
    counts = sum((part.counts for part in parts[1:]), parts[0].counts).clamp_min(1)
    losses = sum((part.losses for part in parts[1:]), parts[0].losses) / counts
    grads = {}
    for place, name in enumerate(stack.tensors):
        whole = sum((part.grads[place] for part in parts[1:]), parts[0].grads[place])
        # A row's tensors are in its own losses alone, so its mean is taken here.
        grads[name] = whole / counts.to(whole.dtype).reshape(-1, *[1] * (whole.ndim - 1))
    return losses, grads


def deal_texts(store: ExampleStore, picks: Sequence[Rows], cores: int) -> list[list[Rows]]:
    """The examples of each row in as many shares as there are cores, of about as many tokens.

    Where a row has too few texts for that, all of them are one share.
    """
    if cores == 1 or min(len(pick) for pick in picks) < cores:
        return [list(picks)]
    shares: list[list[Rows]] = [[] for _ in range(cores)]
    held = np.zeros(cores)
    for pick in picks:
        lengths = store.lengths_of(pick)
        owners, own = np.zeros(len(pick), dtype=np.int64), np.zeros(cores)
        for place in np.argsort(-lengths, kind="stable"):
            # Nobody goes without, and then what all rows dealt so far add up to decides.
            owner = int(np.lexsort((held + own, own > 0))[0])
            owners[place] = owner
            own[owner] += lengths[place]
        held += own
        for core, share in enumerate(shares):
            share.append(pick[owners == core])
    return shares
