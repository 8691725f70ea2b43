"""What training takes on a client's device, counted before it is tried.

Bytes are those of one local step: the backbone's weights, what the backward pass needs of the
forward one, and four numbers for each trained parameter (itself, its gradient, two moments of
AdamW). Frozen layers keep no inputs, so a block keeps little more than its attention, its
feed-forward activation and what its norms were given; blocks below the first adapter keep nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from atlas.federation.adapters.cohort import Layout, Member, adapter_shapes
from atlas.federation.answering import SPARSE
from atlas.federation.batching.backbone import Footprint
from atlas.ops.capacity import cost

TRAINED = 4
"""Numbers held per trained parameter: weight, gradient, first and second moment."""
LOGITS = 3
"""Copies of the logits of a vocabulary that live at once: themselves, their loss, its gradient."""
SLACK = 1.08
"""Indices, masks and the optimiser's passing copies, which are not counted one by one."""
FULL = 4
"""Bytes of a trained number; adapters are float32 whatever the backbone is."""


@dataclass(frozen=True)
class Workload:
    """One local step of one client.

    Attributes:
        texts: How many.
        tokens: Of all of them together.
        longest: Tokens of the longest.
        answers: Tokens with a loss in each text, for causal tasks; zero for classification.
        blocks: Blocks the client runs, from the bottom; those above run elsewhere.
    """

    texts: int
    tokens: int
    longest: int
    answers: int
    blocks: int

    @property
    def places(self) -> int:
        """Places of the padded rectangle that attention sees."""
        return self.texts * self.longest


@dataclass(frozen=True)
class Need:
    """What a client needs: a fixed part, and so much for each rank of each module it adapts.

    Attributes:
        weights: Bytes of frozen weights.
        activations: Bytes kept by the blocks, whatever the ranks.
        head: Bytes of the trained head.
        units: Bytes per rank, by module; zero where the module is elsewhere.
    """

    weights: int
    activations: int
    head: int
    units: tuple[int, ...]

    @property
    def fixed(self) -> int:
        """Bytes that no choice of ranks changes."""
        return self.weights + self.activations + self.head

    def total(self, ranks: Sequence[int]) -> int:
        """Bytes under a plan of ranks."""
        return self.fixed + int(cost(self.units, ranks))


def client_need(
    footprint: Footprint, layout: Layout, member: Member, first_block: int, work: Workload
) -> Need:
    """The cost model.

    Args:
        footprint: Of the backbone.
        layout: Which modules are adapted.
        member: The client's labels; its ranks do not matter.
        first_block: The first block with an adapter.
        work: Its step.
    """
    here = [block_of(module) < work.blocks for module in layout.modules]
    whole = work.blocks == len(footprint.blocks)
    units = [
        (sum(widths) * TRAINED + work.tokens) * FULL if present else 0
        for widths, present in zip(layout.widths, here, strict=True)
    ]
    shapes = adapter_shapes(layout, member)
    head = [shape for name, shape in shapes.items() if name.startswith("head/")] if whole else []
    return Need(
        weights=footprint.embeddings
        + sum(footprint.blocks[: work.blocks])
        + (footprint.top if whole else 0),
        activations=_activations(footprint, layout, first_block, work),
        head=sum(math.prod(shape) for shape in head) * TRAINED * FULL,
        units=tuple(units),
    )


def _activations(footprint: Footprint, layout: Layout, first_block: int, work: Workload) -> int:
    # Blocks below the first adapter run one at a time, padded, and nothing of them is kept.
    below = work.places * 2 * footprint.passing if first_block else 0
    trained = max(0, work.blocks - first_block)
    if not trained:
        return int(SLACK * below * footprint.itemsize)
    top = len(footprint.blocks)
    asked = work.texts * work.answers
    reads = work.blocks == top and asked <= SPARSE * work.tokens
    whole = trained - reads
    per_token = footprint.passing + whole * footprint.kept + reads * footprint.read
    per_place = whole * footprint.spread + reads * footprint.read_spread
    for block in range(first_block, first_block + whole):
        per_token += _adapter_inputs(footprint, layout, block)
    numbers = work.tokens * per_token + work.places * per_place + reads * asked * footprint.kept
    numbers += work.places * work.longest * (whole * footprint.scores + 1)
    if work.blocks == top:
        numbers += LOGITS * work.texts * work.answers * footprint.vocabulary
    return int(SLACK * max(numbers, below) * footprint.itemsize)


def _adapter_inputs(footprint: Footprint, layout: Layout, block: int) -> int:
    """Numbers per token that the adapters of a block keep beyond what it keeps anyway."""
    kept = dict(
        footprint.inputs[module]
        for module in layout.modules
        if module in footprint.inputs and block_of(module) == block
    )
    return sum(kept.values())


def block_of(module: str) -> int:
    """The block's number in a module's full name, such as `encoder.layer.4.output.dense`."""
    return next(int(part) for part in module.split(".") if part.isdecimal())
