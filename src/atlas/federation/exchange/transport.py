"""The one seam between the round loop and wherever clients run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Direction = Literal["up", "down"]
TaskName = Literal[
    "fingerprint", "capacity", "assign", "fit", "deliver", "evaluate", "adapter", "save", "load"
]


@dataclass(frozen=True)
class Failure:
    """A client that could not do what it was asked; a value, never an exception."""

    reason: str


Reply = bytes | Failure


class Transport(Protocol):
    """Asks clients to do a named task.

    Tasks and what their payloads and replies hold:

    - `fingerprint`: facts {settings}; reply: sketches by part, facts {examples, norms by part and
      layer}.
    - `capacity`: reply: facts {tokens, longest, answers}, what a batch of its texts can hold.
    - `assign`: facts {ranks, point, trial}; the client starts again with these ranks and runs
      `point` blocks itself (null: all); reply: facts {bytes}, what a trial step took, or null.
    - `fit`: facts {round}; reply: the trained adapter, facts {examples, steps, loss}.
    - `deliver`: the mixture (no tensors: keep yours), facts {round}; reply: facts {accept,
      sha256 of what the client now holds}.
    - `evaluate`: facts {split, arm}; reply: facts {members: {id: scores}}.
    - `adapter`: facts {arm}; reply: the client's final adapter, personal parts included.
    - `save` / `load`: the client's private state, for checkpoints; not federation traffic.
    """

    def ask(self, task: TaskName, payloads: Mapping[str, bytes]) -> dict[str, Reply]:
        """Run `task` at every client named, with its own payload."""
        ...
