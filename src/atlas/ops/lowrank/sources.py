"""What a mixture of low-rank changes is made of, and which of its directions a client keeps.

Plainly, client l counts W[k, l] in the mixture of client k, which is then cut to its strongest
directions (`leading`). That cut has a price where ranks differ: a client of small rank sends back
a copy without the weaker directions, and every mean with it cuts the others too. Three remedies:

- feedback: beside its adapter a client contributes what earlier cuts removed from its mixture
  (`ops.lowrank.residuals`), weighed by a strength;
- `bands` (raFLoRA): the directions of a client, strongest first, fall into bands between the
  distinct ranks, and every band is averaged over those alone whose rank reaches it. There bands
  are slots of A and B; here they are singular directions, which no gauge changes;
- `own` (after FedRoRA): of all directions of the mixture a client keeps those in which its own
  change is largest, with the sizes they have in the mixture.

All of them are mixtures with rows over more sources than there are clients: a client may be a
source several times. `ingredients` are the sources and `portions` what they count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas.ops.graph.sparse_rows import Edges, Places, tidy
from atlas.ops.lowrank.factors import Layer
from atlas.ops.lowrank.leading import Leading, receive

CutRule = Literal["leading", "bands", "own"]


class Recipe(NamedTuple):
    """How the mixtures of one module are made and cut.

    Attributes:
        cut: Which rule; see the module.
        edges: Distinct ranks of all clients, rising: where bands end.
        residual: What earlier cuts removed from each client's mixture; None for nothing.
        feedback: What it counts.
    """

    cut: CutRule = "leading"
    edges: tuple[int, ...] = ()
    residual: Layer | None = None
    feedback: float = 0.0

    def select(self, some: Tensor) -> Recipe:
        """The same for some of the clients [c]."""
        if self.residual is None:
            return self
        return self._replace(residual=layer_rows(self.residual, some))

    def directions(self, layer: Layer) -> int:
        """How many directions of a mixture must be known for its cut."""
        if self.cut == "own":
            return min(layer.a.shape[2], layer.b.shape[1])
        return layer.a.shape[1]


def layer_rows(layer: Layer, some: Tensor) -> Layer:
    """Some clients of a layer."""
    return Layer(*(value[some.to(value.device)] for value in layer))


def ingredients(layer: Layer, recipe: Recipe) -> list[Layer]:
    """The sources that mixtures are made of, each of as many clients as the layer."""
    if recipe.cut == "bands":
        return band_layers(layer, recipe.edges)
    return [layer] if recipe.residual is None else [layer, recipe.residual]


def portions(rows: Edges, ranks: Places, recipe: Recipe) -> list[Edges]:
    """What the `ingredients` of n clients count in mixtures `rows` [k, n]."""
    if recipe.cut == "bands":
        return band_rows(rows, ranks, recipe.edges)
    return [rows] if recipe.residual is None else [rows, tidy(rows * recipe.feedback)]


def joined(layers: Sequence[Layer]) -> Layer:
    """The clients of several layers one after another, padded to the largest rank."""
    if len(layers) == 1:
        return layers[0]
    most = max(layer.a.shape[1] for layer in layers)
    a = [pad(layer.a, (0, 0, 0, most - layer.a.shape[1])) for layer in layers]
    b = [pad(layer.b, (0, most - layer.b.shape[2])) for layer in layers]
    ranks, scales = (torch.cat([layer[i] for layer in layers]) for i in (2, 3))
    return Layer(torch.cat(a), torch.cat(b), ranks, scales)


def beside(rows: Sequence[Edges]) -> Edges:
    """Rows over the sources that `joined` put one after another."""
    return rows[0] if len(rows) == 1 else tidy(scipy.sparse.hstack(list(rows)))


def band_edges(ranks: Sequence[int]) -> tuple[int, ...]:
    """The distinct ranks, rising."""
    return tuple(sorted(set(ranks)))


def sorted_factors(layer: Layer) -> Layer:
    """Every client's change in the gauge of its singular values, the largest first; float64.

    A' = V^T and B' = U S; slots beyond a client's rank hold nothing but rounding.
    """
    left, left_core = torch.linalg.qr(layer.b.to(torch.float64))
    right, right_core = torch.linalg.qr(layer.a.to(torch.float64).mT)
    u, s, vh = torch.linalg.svd(left_core @ right_core.mT, full_matrices=False)
    short = layer.a.shape[1] - s.shape[1]
    b, a = left @ (u * s[:, None, :]), vh @ right.mT
    return layer._replace(a=pad(a, (0, 0, 0, short)), b=pad(b, (0, short)))


def band_energies(layer: Layer, edges: Sequence[int]) -> Tensor:
    """The squared singular values of every client's change, by band, float64 [n, bands]."""
    left, right = (
        torch.linalg.qr(part.to(torch.float64), mode="r").R for part in (layer.b, layer.a.mT)
    )
    squares = torch.linalg.svdvals(left @ right.mT).square() * layer.scales.square()[:, None]
    ends = torch.tensor([0, *edges], device=squares.device).clamp_max(squares.shape[1])
    sums = pad(squares.cumsum(1), (1, 0))
    return sums[:, ends[1:]] - sums[:, ends[:-1]]


def band_layers(layer: Layer, edges: Sequence[int]) -> list[Layer]:
    """A layer for each band of ranks (edges[h-1], edges[h]]; who has none of it has rank 0."""
    found, low, whole = [], 0, sorted_factors(layer)
    for high in edges:
        ranks = (layer.ranks - low).clamp(0, high - low)
        a, b = whole.a[:, low:high], whole.b[:, :, low:high]
        found.append(Layer(a, b, ranks, layer.scales))
        low = high
    return found


def band_rows(rows: Edges, ranks: Places, edges: Sequence[int]) -> list[Edges]:
    """For each band the rows over those whose rank reaches its end, renormalised.

    A band that nobody in a mixture has is left out of it.
    """
    found = []
    for high in edges:
        holds = scipy.sparse.diags_array((ranks >= high).astype(np.float64))
        held = tidy(rows @ holds)
        total = np.asarray(held.sum(axis=1)).reshape(-1)
        shares = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
        found.append(tidy(scipy.sparse.diags_array(shares) @ held))
    return found


def cut_mixtures(
    mixtures: Leading, which: Tensor, held: Layer, cut: CutRule
) -> tuple[Tensor, Tensor]:
    """New A and B of the receivers of mixtures; arguments as in `leading.receive`."""
    if cut != "own":
        return receive(mixtures, which, held)
    everybody = torch.arange(len(which), device=which.device)
    return receive(own_first(mixtures, which, held), everybody, held)


def own_first(mixtures: Leading, which: Tensor, held: Layer) -> Leading:
    """For each receiver the directions of its mixture in which its own change is largest.

    What counts is |u_i^T dW_k v_i|. As many are kept as the client has ranks, those that are
    strongest in the mixture first; where two are alike the one that is stronger there goes first.

    Returns:
        A mixture of its own for each of the c receivers, R directions at most.
    """
    c, most = len(which), held.a.shape[1]
    right = mixtures.right.new_zeros(c, mixtures.right.shape[1], most)
    image = mixtures.image.new_zeros(c, mixtures.image.shape[1], most)
    sizes = mixtures.sizes.new_zeros(c, most)
    for row in torch.unique(which).tolist():
        size = mixtures.sizes[row]
        for rank in torch.unique(held.ranks[which == row]).tolist():
            some = torch.nonzero((which == row) & (held.ranks == rank)).flatten()
            rows = held.a[some].to(torch.float64) @ mixtures.right[row]
            columns = held.b[some].to(torch.float64).mT @ mixtures.image[row]
            own = (rows * columns).sum(1).abs() / size.clamp_min(torch.finfo(size.dtype).tiny)
            own = torch.where(size > 0, own, -1.0)
            kept = own.argsort(dim=1, descending=True, stable=True)[:, :rank].sort(1).values
            width = kept.shape[1]
            right[some, :, :width] = mixtures.right[row][:, kept].transpose(0, 1)
            image[some, :, :width] = mixtures.image[row][:, kept].transpose(0, 1)
            sizes[some, :width] = size[kept]
    return Leading(right, image, sizes)
