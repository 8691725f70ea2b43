"""How mixtures are brought to clients' ranks, and a share of them to what a client holds.

The plain rule, each client's strongest directions, needs nothing of this: there is a `Cutting` only
where settings ask for another cut, or for feedback of what earlier cuts removed. Product space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import scipy
import torch
from torch import Tensor

from atlas.federation.adapters.cohort import Cohort
from atlas.ops.graph.sparse_rows import SharedRows, share_rows
from atlas.ops.lowrank.factors import Layer
from atlas.ops.lowrank.mixing import mix_b, mix_product
from atlas.ops.lowrank.sources import CutRule, Recipe, band_edges, joined


@dataclass(frozen=True)
class Cutting:
    """What is mixed beside adapters, and which directions of a mixture a client keeps.

    Attributes:
        rule: See `ops.lowrank.sources`.
        feedback: What residuals count.
        residual: What earlier cuts removed from each client's mixtures; None without feedback.
    """

    rule: CutRule = "leading"
    feedback: float = 0.0
    residual: Cohort | None = None

    def recipe(self, cohort: Cohort, module: int) -> Recipe:
        """The same for one module of a cohort of the same clients."""
        edges = band_edges([member.ranks[module] for member in cohort.members])
        residual = None if self.residual is None else self.residual.layer(module)
        return Recipe(self.rule, edges, residual, self.feedback)

    def select(self, clients: Sequence[str]) -> Cutting:
        """The same for some clients."""
        return replace(self, residual=self.residual and self.residual.select(clients))

    def directions(self, cohort: Cohort, module: int) -> int:
        """How many directions of a summed mixture can matter to anybody.

        What a client holds and what is kept of the rest have at most so many together.
        """
        layer = cohort.layer(module)
        most = self.recipe(cohort, module).directions(layer)
        if self.residual is not None:
            most = max(most, layer.a.shape[1] + self.residual.layer(module).a.shape[1])
        return most

    def sources(self, cohort: Cohort, weights: Tensor) -> tuple[list[Layer], Tensor]:
        """Layers and W [..., n, n] over all that is mixed, residuals among it."""
        modules = range(len(cohort.layout.modules))
        if self.residual is None:
            return [cohort.layer(i) for i in modules], weights
        layers = [joined([cohort.layer(i), self.residual.layer(i)]) for i in modules]
        return layers, torch.cat([weights, self.feedback * weights], -1)


def as_rows(weights: Tensor | SharedRows) -> SharedRows:
    """W [n, n] as sparse rows."""
    if isinstance(weights, SharedRows):
        return weights
    return share_rows(scipy.sparse.csr_array(weights.cpu().numpy()))


def blend(own: Cohort, mixture: Cohort, share: float) -> Cohort:
    """(1 - share) * own + share * mixture for every client, cut to its ranks in its own gauge.

    Where A is not trained it is the same on both sides, and stays. Clients compute it for what they
    take, and the server to know what they hold: the same bits, whoever else is in the cohort.
    """
    if share in (0.0, 1.0):
        return mixture if share else own
    tensors = {
        name: value.lerp(mixture.tensors[name], share) for name, value in own.tensors.items()
    }
    weights = torch.tensor([[1 - share, share], [0.0, 1.0]], dtype=torch.float64)
    mix = mix_b if own.trains == "b" else mix_product
    for i in range(len(own.layout.modules)):
        if own.layout.place(i):
            continue  # cores are mixed as they are
        a, b = own.layout.parts(i)
        tensors[a], tensors[b] = tensors[a].clone(), tensors[b].clone()
        for row in range(len(own.members)):
            pair_a = torch.stack([own.tensors[a][row], mixture.tensors[a][row]])
            pair_b = torch.stack([own.tensors[b][row], mixture.tensors[b][row]])
            ranks = own.ranks(i)[[row, row]].to(pair_a.device)
            scales = own.scales(i)[[row, row]].to(pair_a.device)
            new_a, new_b = mix(pair_a, pair_b, ranks, scales, weights.to(pair_a.device))
            tensors[a][row], tensors[b][row] = new_a[0], new_b[0]
    return replace(own, tensors=tensors)
