"""Where the sequences of a memory run come from."""

from __future__ import annotations

from typing import Protocol

from atlas.memory.training.loop import Lines


class Sequences(Protocol):
    """Sequences to train on and others to test with; equal arguments give equal ones."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def chance(self) -> float:
        """Share of right answers without reading: a guess, or always the commonest."""
        ...

    def training(self, step: int, count: int) -> Lines:
        """What is trained on at a step."""
        ...

    def held_out(self, purpose: str, count: int) -> Lines:
        """Sequences that nothing is trained on."""
        ...
