"""How a layer reads, as against what it reads: nothing of it is learned or carried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from atlas.memory.layer.gates import NO_FLOORS, Floors
from atlas.memory.layer.observe import LayerView

Watch = Callable[[LayerView], None]


class Manner(NamedTuple):
    """How to read.

    Attributes:
        floors: How far gates may close.
        watch: Is given what the memory did.
    """

    floors: Floors = NO_FLOORS
    watch: Watch | None = None


PLAIN = Manner()
