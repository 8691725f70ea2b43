"""Optimiser moments that clients keep over rounds, in the same place as their adapters.

Like the adapters of an arm they are stacked, a client a row, in memory or in a file. Only the rows
of clients at work are read and written, in place: what the others keep is not touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from atlas.federation.adapters.cohort import Cohort
from atlas.federation.training.step import Moments


@dataclass(frozen=True)
class KeptMoments:
    """First and second moments of an arm's clients; zeros for a client that has not trained.

    Attributes:
        first: With the names, members and padding of the arm.
        second: Likewise.
        made: Optimiser steps the moments are of, by row.
    """

    first: Cohort
    second: Cohort
    made: torch.Tensor

    @classmethod
    def fresh(cls, arm: Cohort) -> KeptMoments:
        """Nobody has trained."""
        shapes = {name: tuple(value.shape) for name, value in arm.tensors.items()}
        like = next(iter(arm.tensors.values()))
        first, second = (
            arm.place.empty(arm.layout, arm.members, shapes, like.dtype, like.device)
            for _ in range(2)
        )
        made = torch.zeros(len(arm.members), dtype=torch.long, device=like.device)
        return cls(first, second, made)

    def select(self, clients: Sequence[str]) -> tuple[Moments, torch.Tensor]:
        """Copies of some clients' moments, and their steps."""
        first, second = (one.select(clients).tensors for one in (self.first, self.second))
        rows = self.first.index(clients).to(self.made.device)
        return {name: (first[name], second[name]) for name in first}, self.made[rows]

    def write(self, clients: Sequence[str], moments: Moments, made: torch.Tensor) -> None:
        """Replace some clients' moments."""
        rows = self.first.index(clients).to(self.made.device)
        for name, (first, second) in moments.items():
            self.first.tensors[name].index_copy_(0, rows, first)
            self.second.tensors[name].index_copy_(0, rows, second)
        self.made[rows] = made
        for one in (self.first, self.second):
            one.release()

    def state(self, client: str) -> tuple[Moments, torch.Tensor] | None:
        """What one client saves: padded rows and a count [1]; None if it has not trained."""
        row = self.first.places[client]
        if not int(self.made[row]):
            return None
        moments, made = self.select([client])
        return {name: (first[0], second[0]) for name, (first, second) in moments.items()}, made

    def restore(
        self,
        client: str,
        first: Mapping[str, torch.Tensor],
        second: Mapping[str, torch.Tensor],
        made: torch.Tensor | None,
    ) -> None:
        """Put back what a client saved; fresh moments where it had none."""
        row = self.first.places[client]
        self.made[row] = 0 if made is None else made[0]
        for cohort, saved in ((self.first, first), (self.second, second)):
            for name, value in cohort.tensors.items():
                value[row] = saved[name].to(value) if name in saved else 0.0
            cohort.release()

    def restarted(self, start: Cohort, starting: Sequence[str]) -> KeptMoments:
        """Fresh moments for some clients, the others' padded as the arm now is.

        Args:
            start: The arm with other ranks.
            starting: Who starts again.
        """
        fresh = KeptMoments.fresh(start)
        for client in self.first.clients:
            if client in starting:
                continue
            row = start.places[client]
            fresh.first.fill(row, self.first.take(client))
            fresh.second.fill(row, self.second.take(client))
            fresh.made[row] = self.made[row]
        return fresh
