"""Clients that can share one forward pass: the same backbone and the same kind of task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from atlas.config.federation import Weighing
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.batching.forward import Model
from atlas.federation.batching.store import ExampleStore, Part
from atlas.federation.holder import Holder
from atlas.federation.training.evaluate import Limits
from atlas.federation.training.loop import Lesson
from atlas.federation.training.step import Moments

ACCEPTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a mixture that validation data chooses from."""


@dataclass
class Group:
    """The local state of a group of clients.

    Attributes:
        model: Their shared frozen model.
        holders: By id, sorted.
        arms: Stacked adapters by arm: `held` (what the client holds), `shadow` (trained alone
            on the same batches), `personal` (trained beside `held` and pulled to it; never
            sent).
        limits: How much text is kept and generated.
        anchor: Who is pulled to what was held at a round's start; see `Strategy`.
        keeps_best: Whether clients end with the better of federated and alone.
        weigh: What examples count in training and in validation losses.
        margin: Standard errors by which an adapter must lead on validation data to be clearly
            better.
        shares: How much of a mixture a client may take; where there is a choice, its validation
            data makes it.
        accepting: Where there is a choice: all of the mixture unless one's own adapter is clearly
            better, or the fittest share at once.
        deliver: Whether a mixture takes an adapter's place or is merged; see `Strategy`.
        splits: Blocks that a client runs itself, where a server runs the rest.
        moments: Optimiser moments and step counts by arm, where they are kept.
        accepts: Share of the mixture each client took last.
        progress: Called with (done, total) while the lower blocks meet new texts.
    """

    model: Model
    holders: dict[str, Holder]
    arms: dict[str, Cohort]
    limits: Limits
    anchor: Literal["none", "start", "global"] = "none"
    keeps_best: bool = False
    weigh: Weighing = "examples"
    margin: float = 1.0
    shares: tuple[float, ...] = (1.0,)
    accepting: Literal["unless worse", "fittest"] = "unless worse"
    deliver: Literal["replace", "merge"] = "replace"
    splits: dict[str, int] = field(default_factory=dict)
    moments: dict[str, tuple[Moments, torch.Tensor]] = field(default_factory=dict)
    accepts: dict[str, float] = field(default_factory=dict)
    progress: Callable[[int, int], None] | None = None
    _store: ExampleStore | None = None
    _test_store: ExampleStore | None = None

    @property
    def store(self) -> ExampleStore:
        """Training and validation examples; built on first use."""
        if self._store is None:
            parts: dict[str, Part] = {}
            for name, holder in self.holders.items():
                parts[f"{name}/train"] = (holder.data.task, holder.data.train)
                parts[f"{name}/validation"] = (holder.data.task, holder.data.validation)
            self._store = self.new_store(parts, self.weigh)
        return self._store

    @property
    def test_store(self) -> ExampleStore:
        """Test examples of all members; first used, and so first read, at the end of a run."""
        if self._test_store is None:
            members = [m for holder in self.holders.values() for m in holder.members]
            self._test_store = self.new_store({m.id: (m.task, m.test) for m in members})
        return self._test_store

    def new_store(self, parts: Mapping[str, Part], weigh: Weighing = "examples") -> ExampleStore:
        """A store of other examples for the same model."""
        return ExampleStore(self.model, parts, self.limits.max_length, self.progress, weigh)

    def lesson(self, client: str) -> Lesson:
        """What one client trains on."""
        store = self.store
        return Lesson(client, store.rows(f"{client}/train"), store.rows(f"{client}/validation"))

    def write(self, arm: str, clients: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> None:
        """Put rows of stacked tensors into an arm."""
        cohort = self.arms[arm]
        first = next(iter(cohort.tensors.values()))
        index = cohort.index(clients).to(first.device)
        new = {k: v.index_copy(0, index, tensors[k]) for k, v in cohort.tensors.items()}
        self.arms[arm] = replace(cohort, tensors=new)
