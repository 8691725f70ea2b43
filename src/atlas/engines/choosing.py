"""How much of a mixture a client takes, where it may choose.

All of it, unless what it holds is clearly better: a hundred examples tell two models apart to some
five points, and going by the sign alone would often give up what was learned from others for what
chance made look better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from atlas.engines.local.groups import Group
from atlas.federation.adapters.cohort import Adapter, Cohort
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.mixing.deliver import Taken
from atlas.federation.training.evaluate import predict_rows
from atlas.ops.lowrank.mixing import mix_b, mix_product
from atlas.ops.statistics import lead_of


def fitness(losses: NDArray[np.float64]) -> float:
    """How well an adapter suits a client, by the losses of its validation examples.

    A metric of few examples is too coarse: in the first rounds most mixtures score alike.
    """
    mean = float(losses.mean())
    return -mean if math.isfinite(mean) else -math.inf


def clearly_better(first: NDArray[np.float64], second: NDArray[np.float64], margin: float) -> bool:
    """Whether losses on the same examples are lower by more than `margin` standard errors."""
    if not np.isfinite(first).all() or not np.isfinite(second).all():
        return fitness(first) > fitness(second)
    lead, error = lead_of(second, first)
    return lead > margin * error


def blend(own: Cohort, mixture: Cohort, share: float) -> Cohort:
    """(1 - share) * own + share * mixture for every client, cut to its ranks in its own gauge.

    Where A is not trained it is the same on both sides, and stays.
    """
    if share in (0.0, 1.0):
        return mixture if share else own
    tensors = {
        name: value.lerp(mixture.tensors[name], share) for name, value in own.tensors.items()
    }
    weights = torch.tensor([[1 - share, share], [0.0, 1.0]], dtype=torch.float64)
    mix = mix_b if own.trains == "b" else mix_product
    for i, module in enumerate(own.layout.modules):
        a, b = f"lora_a/{module}", f"lora_b/{module}"
        tensors[a], tensors[b] = tensors[a].clone(), tensors[b].clone()
        for row in range(len(own.members)):
            pair_a = torch.stack([own.tensors[a][row], mixture.tensors[a][row]])
            pair_b = torch.stack([own.tensors[b][row], mixture.tensors[b][row]])
            ranks = own.ranks(i)[[row, row]].to(pair_a.device)
            scales = own.scales(i)[[row, row]].to(pair_a.device)
            new_a, new_b = mix(pair_a, pair_b, ranks, scales, weights.to(pair_a.device))
            tensors[a][row], tensors[b][row] = new_a[0], new_b[0]
    return replace(own, tensors=tensors)


def choose_best(group: Group, offers: Mapping[str, Sequence[Adapter]]) -> dict[str, Taken]:
    """A client takes the mixture that suits it best, unless its own adapter is clearly better.

    Then, or where any share is as welcome (`Group.accepting`), it takes the share that suits it
    best, which may be none. The loss on its validation data decides.
    """
    best = _best_blends(group, offers)
    group.arms["held"] = group.arms["held"].put({c: one.adapter for c, one in best.items()})
    return {client: one.taken for client, one in best.items()}


@dataclass(frozen=True)
class _Choice:
    losses: NDArray[np.float64]
    taken: Taken
    adapter: Adapter


@dataclass(frozen=True)
class _Search:
    """What suits each client best so far.

    Attributes:
        group: Whose clients they are.
        offers: Their mixtures.
        own: What they hold; the first mixture where their own training blew up.
        best: The fittest found.
    """

    group: Group
    offers: Mapping[str, Sequence[Adapter]]
    own: Cohort
    best: dict[str, _Choice] = field(default_factory=dict)

    def try_share(self, clients: Sequence[str], share: float) -> None:
        """Look at so much of every mixture that some clients were offered."""
        for pick in range(max((len(self.offers[client]) for client in clients), default=0)):
            given = {c: self.offers[c][pick] for c in clients if pick < len(self.offers[c])}
            cohort = blend(self.own, self.own.put(given), share)
            for client, losses in _losses(self.group, cohort, sorted(given)).items():
                before = self.best.get(client)
                if before is None or fitness(losses) > fitness(before.losses):
                    self.best[client] = _Choice(losses, Taken(pick, share), cohort.take(client))

    def try_own(self, clients: Sequence[str]) -> list[str]:
        """Look at what some clients hold; returns those who would rather not take all."""
        free, doubters = self.group.accepting == "fittest", []
        for client, losses in _losses(self.group, self.own, clients).items():
            mixed = self.best.get(client)
            if mixed is not None:
                if not free and not clearly_better(losses, mixed.losses, self.group.margin):
                    continue
                doubters.append(client)
                if fitness(losses) < fitness(mixed.losses):
                    continue
            self.best[client] = _Choice(losses, Taken(0, 0.0), self.own.take(client))
        return doubters


def _best_blends(group: Group, offers: Mapping[str, Sequence[Adapter]]) -> dict[str, _Choice]:
    clients = sorted(offers)
    held = group.arms["held"].select(clients)
    # A client whose own training blew up has nothing to blend with.
    lost = {c: one[0] for c, one in offers.items() if one and not _finite(held.take(c))}
    search = _Search(group, offers, held.put(lost))
    *smaller, whole = sorted(group.shares)
    search.try_share(clients, whole)
    # Without the choice of taking nothing, one's own adapter is for those who were offered none.
    doubters = search.try_own([c for c in clients if 0.0 in smaller or not offers[c]])
    for share in smaller:
        if share:
            search.try_share(doubters, share)
    return search.best


def _losses(group: Group, cohort: Cohort, clients: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """The loss of every validation example of each client."""
    if not clients:
        return {}
    picks = [group.store.rows(f"{client}/validation") for client in clients]
    found, _ = predict_rows(group.store, stack_cohorts([cohort.select(clients)]), picks)
    return dict(zip(clients, found, strict=True))


def _finite(adapter: Adapter) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in adapter.values())
