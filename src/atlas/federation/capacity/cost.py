"""What training takes on a client's device, and how much each of its layers counts.

Bytes are those of one local step: the backbone's weights, what the backward pass needs of the
forward one, and four numbers for each trained parameter (itself, its gradient, two moments of
AdamW). Frozen layers keep no inputs, so a block keeps little more than its attention, its
feed-forward activation and what its norms were given; blocks below the first adapter keep nothing.

How much a layer counts is read from the gradients that clients tell with their fingerprints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atlas.federation.adapters.adapter import Layout, Member, adapter_shapes, is_head
from atlas.federation.batching.backbone import Footprint
from atlas.federation.batching.forward import SPARSE
from atlas.federation.fingerprints.planned import CohortPlan
from atlas.ops.capacity import cluster_complexity, cost, layer_importance

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
    head = [shape for name, shape in shapes.items() if is_head(name)] if whole else []
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


def in_block(module: str) -> bool:
    """Whether a module's full name says in which block it is."""
    return any(part.isdecimal() for part in module.split("."))


def block_of(module: str) -> int:
    """The block's number in a module's full name, such as `encoder.layer.4.output.dense`."""
    return next(int(part) for part in module.split(".") if part.isdecimal())


Norms = Mapping[str, Mapping[str, float]]
"""Gradient norms by part and layer, as a client tells them with its fingerprint."""
LOSS_PARTS = ("label", "mean", "text")
"""Parts by how near their gradient is to that of the training loss."""


def importance_of(
    norms: Norms | None, modules: Sequence[str], depth: int, slope: float
) -> list[float]:
    """How much each adapted module of a model of `depth` blocks counts; alike if nothing is known.

    Fingerprints may look at fewer blocks than are adapted: a module without a norm counts like
    the same module of the nearest block that has one.
    """
    found = loss_norms(norms)
    top = max(1, depth - 1)
    values = [_norm_of(module, found) for module in modules] if found else [1.0] * len(modules)
    return layer_importance(values, [block_of(m) / top for m in modules], slope)


def loss_norms(norms: Norms | None) -> dict[str, float]:
    """Norms by layer of the part that is nearest to the training loss; empty if none is known."""
    for part in LOSS_PARTS:
        found = dict((norms or {}).get(part, {}))
        if any(value > 0 for value in found.values()):
            return found
    return {}


def complexities(planned: CohortPlan, norms: Mapping[str, Norms]) -> dict[str, float]:
    """Complexity of every client's cluster; empty where there are no clusters."""
    if planned.prints is None or planned.clusters is None:
        return {}
    clients, labels = planned.prints.clients, planned.clusters.labels
    sizes = [sum(v * v for v in loss_norms(norms.get(c)).values()) ** 0.5 for c in clients]
    found = cluster_complexity(planned.prints.features, labels, sizes)
    return {client: found[label] for client, label in zip(clients, labels, strict=True)}


def _norm_of(module: str, found: Mapping[str, float]) -> float:
    if module in found:
        return found[module]
    kind, block = _kind(module), block_of(module)
    body = {name: value for name, value in found.items() if not is_head(name)}
    alike = {block_of(name): value for name, value in body.items() if _kind(name) == kind}
    if not alike:
        return sum(body.values()) / max(1, len(body))
    return alike[min(alike, key=lambda other: abs(other - block))]


def _kind(module: str) -> str:
    return ".".join(part for part in module.split(".") if not part.isdecimal())
