"""What training takes on a client's device, and how much each of its layers counts.

Bytes are those of one local step: the backbone's weights, what its blocks take at the client's
largest batch (`block_bytes.py` runs one and counts), and what trained numbers take: themselves,
as the client holds and as it trains them, two moments of AdamW, and their share of the step.

How much a layer counts is read from the gradients that clients tell with their fingerprints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from atlas.federation.adapters.adapter import Member, adapter_shapes, is_head
from atlas.federation.capacity.block_bytes import LargestBatch, StepMeter
from atlas.federation.fingerprints.planned import CohortPlan
from atlas.ops.capacity import cluster_complexity, cost, layer_importance

HELD = 4
"""Copies of trained numbers that live through a step: as it began, as trained, two moments."""
LEFT = 7
"""Copies when training ends, and nothing of the step is left: what is handed over is new."""


@dataclass(frozen=True)
class Moment:
    """What is held at one moment of training: a fixed part, and so much for each rank.

    Attributes:
        fixed: Bytes that no choice of ranks changes, weights included.
        units: Bytes per rank, by module; zero where the module is elsewhere.
    """

    fixed: int
    units: tuple[int, ...]

    def total(self, ranks: Sequence[int]) -> int:
        """Bytes under a plan of ranks."""
        return self.fixed + int(cost(self.units, ranks))


@dataclass(frozen=True)
class Need:
    """What a client needs: the most of several moments, any of which may be the highest.

    Attributes:
        weights: Bytes of frozen weights.
        moments: Of a step, and after the last one.
    """

    weights: int
    moments: tuple[Moment, ...]

    @property
    def fixed(self) -> int:
        """Bytes that no choice of ranks changes."""
        return max(moment.fixed for moment in self.moments)

    def total(self, ranks: Sequence[int]) -> int:
        """Bytes under a plan of ranks."""
        return max(moment.total(ranks) for moment in self.moments)


def client_need(
    meter: StepMeter, member: Member, batch: LargestBatch, blocks: int | None = None
) -> Need:
    """The cost model.

    Args:
        meter: Of the client's model.
        member: The client's labels; its ranks do not matter.
        batch: The most its batches hold.
        blocks: Blocks that the client runs, from the bottom; None for all of them.
    """
    model = meter.model
    size, top = model.backbone.size, model.backbone.depth - 1
    here = top + 1 if blocks is None else blocks
    reads = here > top
    weights = size.embeddings + sum(size.blocks[:here]) + (size.top if reads else 0)
    found = meter.measure(batch, member)
    number = torch.promote_types(model.backbone.dtype, torch.float32).itemsize
    shapes = adapter_shapes(model.layout, member)
    head = sum(math.prod(shape) for name, shape in shapes.items() if reads and is_head(name))
    widths = list(zip(map(block_of, model.layout.modules), model.layout.widths, strict=True))
    beside = model.layout.gate != "none"

    def moment(activations: int, copies: int, kept: int = 0, last: float = 0.0) -> Moment:
        """With copies of trained numbers, places kept by a rank, bytes beside a last block's."""
        units = []
        for block, (d_in, d_out) in widths:
            own = number * copies * (d_in + d_out)
            if block == top:
                own += math.ceil(last * (d_in + d_out))
            elif kept:
                # Scaled B, and what lies between A and B at every place, for the way back.
                own += number * (d_out + kept)
            if beside:
                own += number * _beside_numbers(d_in, d_out, kept, top=block == top)
            units.append(own if block < here else 0)
        return Moment(weights + activations + number * copies * head, tuple(units))

    whole = max(0, here - reads - model.first_block)
    moments = [moment(found.below, HELD)]
    if reads:
        each = found.read_rank / sum(sum(pair) for block, pair in widths if block == top)
        moments.append(moment(found.reading(whole), HELD, batch.tokens, last=each))
        moments.append(moment(0, LEFT))
    if whole:
        # By then the last block and the head have their gradients, and have let go of the rest.
        ready = found.topmost(whole) + number * head
        moments.append(moment(ready, HELD, batch.tokens, last=number))
    return Need(weights, tuple(moments))


def _beside_numbers(d_in: int, d_out: int, kept: int, *, top: bool) -> int:
    """Numbers by rank that what stands beside an adapter takes.

    Itself, and while a step's way back is open also both adapters side by side, B weighed, and what
    lies between A and B once more; of the last block, little of that.
    """
    own = d_in + d_out
    if not kept:
        return own
    return own + d_out if top else own + 2 * d_in + 3 * d_out + kept


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
