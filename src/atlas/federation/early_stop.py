"""Early stopping of rows in a stack, each by its own validation data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from atlas.federation.batching.forward import Stack
from atlas.federation.batching.store import ExampleStore, Rows
from atlas.federation.training.evaluate import mean_losses


class EarlyStop:
    """Watches validation losses at epoch ends and remembers each row's best tensors."""

    def __init__(self, patience: int, stack: Stack) -> None:
        self.patience = patience
        self.best = replace(stack, tensors=dict(stack.tensors))
        self.losses = [float("inf")] * len(stack.labels)
        self.waited = [0] * len(stack.labels)

    def check(
        self, store: ExampleStore, stack: Stack, rows: Sequence[int], validation: Sequence[Rows]
    ) -> set[int]:
        """Rows that should stop, of those that have just finished an epoch."""
        if not rows:
            return set()
        index = torch.tensor(rows, device=stack.labels.device)
        found = mean_losses(store, stack.rows(index), validation)
        stopped = set()
        for row, loss in zip(rows, found, strict=True):
            if loss < self.losses[row]:
                self.losses[row], self.waited[row] = loss, 0
                self._remember(stack, row)
                continue
            self.waited[row] += 1
            if self.waited[row] >= self.patience:
                stopped.add(row)
        return stopped

    def _remember(self, stack: Stack, row: int) -> None:
        for name, value in stack.tensors.items():
            kept = self.best.tensors[name].clone()
            kept[row] = value[row]
            self.best.tensors[name] = kept
