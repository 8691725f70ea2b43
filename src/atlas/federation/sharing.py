"""Gradients of a step, its texts divided among the cores that are free for it.

Losses of a batch add up over its texts, and so do their gradients: each core takes some texts of
every row, and the sums are those of the undivided step. Where all cores are busy with rows of their
own, there is one share.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from atlas.federation.batching.forward import Stack, run
from atlas.federation.batching.store import ExampleStore, Rows
from atlas.federation.training.split import Gradients
from atlas.runs.cores import cores_for


def shared_gradients(
    store: ExampleStore, stack: Stack, picks: Sequence[Rows]
) -> tuple[Tensor, Gradients]:
    """Mean losses of the rows of a stack [n], and the gradients of their sum.

    Args:
        store: Where the examples are.
        stack: Adapters whose tensors ask for gradients.
        picks: The examples of each row.
    """
    names, values = list(stack.tensors), list(stack.tensors.values())
    shares = deal_texts(store, picks, cores_for(store.labels.device))
    if len(shares) == 1:
        losses = run(store.model, stack, store.batch(picks)).client_losses()
        grads = torch.autograd.grad(losses.sum(), values)
        return losses, dict(zip(names, grads, strict=True))
    counts = torch.tensor([max(1, store.counts_of(pick).sum()) for pick in picks])

    def add_up(own: ExampleStore, share: Sequence[Rows]) -> list[Tensor]:
        losses = run(own.model, stack, own.batch(share)).losses.sum(1) / counts
        return [losses.detach(), *torch.autograd.grad(losses.sum(), values)]

    parts = store.on_cores(add_up, shares)
    # In the order of the shares, not of their ends: the same bits every time.
    total, *found = (reduce(torch.add, some) for some in zip(*parts, strict=True))
    return total, dict(zip(names, found, strict=True))


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
