"""Where in their ranks clients hold what they learned: energy by bands of ranks.

The energy of a change is its squared norm, the sum of its squared singular values. Sorted, the
strongest first, they fall into bands between the distinct ranks of a cohort. Where mixing with
clients of smaller ranks cuts the weaker directions off, the last bands of the others empty.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.federation.adapters.cohort import Cohort
from atlas.federation.fingerprints.planned import LARGEST_LOGGED
from atlas.ops.lowrank.sources import band_edges, band_energies

UNUSED = 0.01
"""Energy below this share counts as none."""


def cohort_bands(cohort: Cohort) -> tuple[int, ...]:
    """The distinct ranks of a cohort, in all its modules; none where it has cores."""
    if cohort.layout.cores:
        return ()
    return band_edges([rank for member in cohort.members for rank in member.ranks])


def energy_shares(cohort: Cohort) -> Tensor:
    """Each client's energy by band, all modules together, as shares [n, bands], float64.

    A client that has learned nothing has zeros.
    """
    edges = cohort_bands(cohort)
    modules = range(len(cohort.layout.modules))
    energy = sum(band_energies(cohort.layer(i), edges).cpu() for i in modules)
    assert isinstance(energy, Tensor)
    total = energy.sum(1, keepdim=True)
    return torch.where(total > 0, energy / total.clamp_min(torch.finfo(total.dtype).tiny), 0.0)


def describe_energy(trained: Cohort, mixed: Cohort) -> dict[str, object] | None:
    """Shares of energy by band before and after mixing; None where all ranks are equal."""
    edges = cohort_bands(trained)
    if len(edges) < 2:
        return None
    both = {"trained": trained, "mixed": mixed}
    shares = {name: energy_shares(cohort).tolist() for name, cohort in both.items()}
    return {"bands": list(edges), **shares}


def unused_ranks(cohort: Cohort) -> dict[str, dict[str, float]]:
    """Clients that hold next to nothing in most of their ranks; of few clients with unequal ranks.

    Returns:
        By client `rank`, the largest it has, `used`, the end of the last band that holds anything,
        and `beyond`, the share of its energy beyond that.
    """
    edges = cohort_bands(cohort)
    if len(edges) < 2 or len(cohort.clients) > LARGEST_LOGGED:
        return {}
    found = {}
    for member, shares in zip(cohort.members, energy_shares(cohort), strict=True):
        rest = 1 - shares.cumsum(0)
        last = min(int((rest >= UNUSED).sum()), len(edges) - 1)
        kept = sum(min(rank, edges[last]) for rank in member.ranks)
        if float(shares.sum()) > 0 and 2 * kept <= sum(member.ranks):
            beyond = max(0.0, float(rest[last]))
            found[member.id] = {
                "rank": max(member.ranks),
                "used": edges[last],
                "beyond": beyond,
            }
    return found
