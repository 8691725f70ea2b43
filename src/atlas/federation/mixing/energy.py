"""Where in their ranks clients hold what they learned: energy by bands of ranks.

The energy of a change is its squared norm, the sum of its squared singular values. Sorted, the
strongest first, they fall into bands between the distinct ranks of a cohort. Where mixing with
clients of smaller ranks cuts the weaker directions off, the last bands of the others empty.

Bands are for events and pictures. How many of its ranks a client uses is counted one by one, for
it may use few of them where all ranks are equal, too.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    return _shares(cohort, cohort_bands(cohort))


def _shares(cohort: Cohort, edges: Sequence[int]) -> Tensor:
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
    """Clients that hold next to nothing in more than half of their ranks; of few clients.

    Returns:
        By client `rank`, the largest it has, `used`, how many directions of every module it takes
        to hold the rest, and `beyond`, the share of its energy beyond those.
    """
    if cohort.layout.cores or len(cohort.clients) > LARGEST_LOGGED:
        return {}
    most = max(rank for member in cohort.members for rank in member.ranks)
    found = {}
    for member, shares in zip(cohort.members, _shares(cohort, range(1, most + 1)), strict=True):
        rest = 1 - shares.cumsum(0)
        used = min(1 + int((rest >= UNUSED).sum()), most)
        kept = sum(min(rank, used) for rank in member.ranks)
        if float(shares.sum()) > 0 and 2 * kept < sum(member.ranks):
            beyond = max(0.0, float(rest[used - 1]))
            found[member.id] = {"rank": max(member.ranks), "used": used, "beyond": beyond}
    return found
