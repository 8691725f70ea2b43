"""How much each layer of each client counts, from the gradients told with fingerprints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlas.federation.capacity.cost import block_of
from atlas.federation.fingerprints.planned import Planned
from atlas.ops.capacity import cluster_complexity, layer_importance

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


def complexities(planned: Planned, norms: Mapping[str, Norms]) -> dict[str, float]:
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
    body = {name: value for name, value in found.items() if not name.startswith("head/")}
    alike = {block_of(name): value for name, value in body.items() if _kind(name) == kind}
    if not alike:
        return sum(body.values()) / max(1, len(body))
    return alike[min(alike, key=lambda other: abs(other - block))]


def _kind(module: str) -> str:
    return ".".join(part for part in module.split(".") if not part.isdecimal())
