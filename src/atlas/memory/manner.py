"""How a layer reads, as against what it reads: nothing of it is learned or carried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from atlas.memory.gates import NO_FLOORS, Floors
from atlas.memory.observe import LayerView
from atlas.memory.precision import Run
from atlas.memory.run import run_rule

Watch = Callable[[LayerView], None]


class Manner(NamedTuple):
    """How to read.

    Attributes:
        floors: How far gates may close.
        watch: Is given what the memory did.
        run: Follows the rule; `rerun_rule` within a checkpointed block.
    """

    floors: Floors = NO_FLOORS
    watch: Watch | None = None
    run: Run = run_rule


PLAIN = Manner()
