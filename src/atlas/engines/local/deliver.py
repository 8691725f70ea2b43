"""The `deliver` task of the local engine: what a client does with a mixture.

Where it may choose it takes all of it, unless what it holds is clearly better: a hundred examples
tell two models apart to some five points, and going by the sign alone would often give up what was
learned from others for what chance made look better.

A merged mixture is added to a dense change of the client's own, after which its adapter restarts:
the backbone is shared and never written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.engines.local.groups import ClientGroup
from atlas.federation.adapters.adapter import Adapter, factors_of, heads_of
from atlas.federation.adapters.changes import changes_of, scalar_betas
from atlas.federation.adapters.cohort import Cohort, restart
from atlas.federation.batching.forward import Model, stack_cohorts
from atlas.federation.batching.store import Rows
from atlas.federation.mixing.cutting import blend
from atlas.federation.mixing.deliver import Taken
from atlas.federation.training.evaluate import Scores, predict_rows, score_labels
from atlas.ops.lowrank.factors import delta, factor_dense
from atlas.ops.metrics import example_weights, lead_of


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


def choose_best(group: ClientGroup, offers: Mapping[str, Sequence[Adapter]]) -> dict[str, Taken]:
    """A client takes the mixture that suits it best, unless its own adapter is clearly better.

    Then, or where any share is as welcome (`ClientGroup.accepting`), it takes the share that suits
    it best, which may be none. The loss on its validation data decides.
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

    group: ClientGroup
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


def _best_blends(group: ClientGroup, offers: Mapping[str, Sequence[Adapter]]) -> dict[str, _Choice]:
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


def _losses(
    group: ClientGroup, cohort: Cohort, clients: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    """The loss of every validation example of each client."""
    if not clients:
        return {}
    picks = [group.store.rows(f"{client}/validation") for client in clients]
    found, _ = predict_rows(group.store, stack_cohorts([cohort.select(clients)]), picks)
    return dict(zip(clients, found, strict=True))


def _finite(adapter: Adapter) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in adapter.values())


def validate(
    group: ClientGroup, arms: Sequence[Cohort], clients: Sequence[str]
) -> list[dict[str, Scores]]:
    """Scores of clients' adapters in each of `arms` on their own validation data, in one pass."""
    picks = [group.store.rows(f"{client}/validation") for client in clients]
    tasks = [group.holders[client].data.task for client in clients]
    stack = stack_cohorts([cohort.select(clients) for cohort in arms])
    rows = score_labels(group.store, stack, picks * len(arms), tasks * len(arms))
    count = len(clients)
    return [
        dict(zip(clients, rows[arm * count : (arm + 1) * count], strict=True))
        for arm in range(len(arms))
    ]


def replace_held(group: ClientGroup, offers: Mapping[str, Sequence[Adapter]]) -> dict[str, Taken]:
    """Plain delivery: the one mixture offered becomes the client's adapter."""
    group.arms["held"] = group.arms["held"].put({c: one[0] for c, one in offers.items() if one})
    return {client: Taken(0, 1.0 if one else 0.0) for client, one in offers.items()}


def place_beside(group: ClientGroup, offers: Mapping[str, Sequence[Adapter]]) -> dict[str, Taken]:
    """The one mixture offered comes to stand beside the client's own adapter."""
    held = group.arms["held"]
    assert held.slot is not None
    given = {client: one[0] for client, one in offers.items() if one}
    group.arms["held"] = replace(held, slot=held.slot.take(given))
    return {client: Taken(0, 1.0 if one else 0.0) for client, one in offers.items()}


def arm_in_use(group: ClientGroup) -> str:
    """The arm clients answer with: a personal adapter goes before what they hold to share."""
    return "personal" if "personal" in group.arms else "held"


def final_cohort(group: ClientGroup, arm: str, clients: Sequence[str]) -> Cohort:
    """The adapters that count at the end, of `clients` and maybe of others too.

    `alone` is the shadow. `final` is what clients hold; where the best is kept, a client whose
    validation data speaks clearly for training alone gets that.

    Raises:
        ValueError: If there is no shadow.
    """
    if arm == "alone":
        if "shadow" not in group.arms:
            raise ValueError("nobody is trained alone in this run")
        return group.arms["shadow"]
    if not group.keeps_best:
        return group.arms[arm_in_use(group)]
    solo = {c: group.arms["shadow"].take(c) for c in better_alone(group, clients)}
    chosen = group.arms["held"].select(clients).put(solo)
    return replace(chosen, slot=chosen.slot and chosen.slot.without(solo))


def better_alone(group: ClientGroup, clients: Sequence[str]) -> list[str]:
    """Clients whose shadow is right clearly more often than what they hold."""
    picks = [group.store.rows(f"{client}/validation") for client in clients]
    held, shadow = (_faults(group, arm, clients, picks) for arm in ("held", "shadow"))
    return [
        client
        for client, one, other in zip(clients, shadow, held, strict=True)
        if clearly_better(one, other, group.margin)
    ]


def _faults(
    group: ClientGroup, arm: str, clients: Sequence[str], picks: Sequence[Rows]
) -> list[NDArray[np.float64]]:
    """How wrong every validation example is, by client; causal tasks by their loss.

    Where a task's metric minds rare classes, so does the weight of an example.
    """
    stack = stack_cohorts([group.arms[arm].select(clients)])
    losses, predicted = predict_rows(group.store, stack, picks)
    truth = group.store.labels.cpu().numpy()
    faults = []
    for row, client in enumerate(clients):
        task, labels = group.holders[client].data.task, truth[picks[row]]
        if task.kind == "causal":
            faults.append(losses[row])
            continue
        wrong = (predicted[row] != labels) * example_weights(labels, task.metric)
        # Broken logits still have a largest entry; such a model is right about nothing.
        faults.append(np.where(np.isfinite(losses[row]), wrong, np.inf))
    return faults


def merge_held(
    group: ClientGroup, offers: Mapping[str, Sequence[Adapter]], seed: int
) -> dict[str, Taken]:
    """Add the one mixture offered to each client's dense change; heads take their places.

    All sums are made before any is kept, so a failure leaves every client as it was.
    """
    held = group.arms["held"]
    given = {client: one[0] for client, one in offers.items() if one}
    merged = {client: _merged(held, client, adapter) for client, adapter in given.items()}
    heads = {client: heads_of(adapter) for client, adapter in given.items()}
    fresh = restart(held, given, seed).put(heads)
    group.arms["held"] = replace(fresh, deltas={**held.deltas, **merged})
    return {client: Taken(0, 1.0 if one else 0.0) for client, one in offers.items()}


def mark_delivered(
    group: ClientGroup, offers: Mapping[str, Sequence[Adapter]], taken: Mapping[str, Taken]
) -> None:
    """Remember, of clients that compress, what the server now knows them to start from."""
    if group.deliver == "global":
        return
    for client in set(taken) & set(group.sent):
        share = taken[client].accept
        if not share:
            continue
        sent, offer = group.sent[client], offers[client][taken[client].pick]
        if group.deliver == "merge":
            offer = group.arms["held"].take(client).only(sent.known.__contains__)
        group.sent[client] = sent.delivered(offer, share)


def _merged(cohort: Cohort, client: str, mixture: Adapter) -> dict[str, Tensor]:
    """A client's dense changes with a mixture of any rank added, summed in float64."""
    layout, before = cohort.layout, cohort.deltas.get(client, {})
    like = next(iter(cohort.tensors.values()))
    sums = {}
    for module in layout.modules:
        a, b = (part.to(like.device, torch.float64) for part in factors_of(mixture, module))
        change = delta(a, b, layout.alpha / a.shape[0])
        if module in before:
            change = change + before[module]
        sums[module] = change.to(like.dtype)
    return sums


def own_adapter(cohort: Cohort, client: str) -> Adapter:
    """A client's tensors as they are, and those that stand beside its adapter."""
    found = cohort.take(client)
    if cohort.slot and cohort.slot.ready.get(client):
        given = cohort.slot.cohort.take(client)
        found |= {f"beside|{name}": value for name, value in given.items()}
    return Adapter(found)


def whole_cores(cohort: Cohort, client: str) -> Adapter:
    """A client's adapter with its cores as they act: its own and what is beside them, weighed."""
    single = cohort.select([client])
    found, slot = cohort.take(client), single.slot
    if slot is None:
        return found
    betas = scalar_betas(cohort.layout, stack_cohorts([single]))[0]
    given = slot.cohort.take(client)
    for i, beta in enumerate(betas):
        for name in cohort.layout.parts(i) if cohort.layout.place(i) else ():
            found[name] = torch.lerp(found[name], given[name], beta.to(found[name]))
    return found


def whole_adapter(model: Model, cohort: Cohort, client: str) -> Adapter:
    """All that a client adds to the backbone as one plain adapter, its scale alpha / rank.

    Where there is a dense change, it and the adapter are factored together, to the rank they have
    together in the precision they are held in. A core becomes A, B and a constant; with something
    beside the adapter both are put side by side, as the gate weighs them.

    Raises:
        ValueError: If a gate looks at the token: then there is no such form.
    """
    adapter, layout = cohort.take(client), cohort.layout
    if layout.gate == "input":
        raise ValueError("gate: input weighs adapters token by token, which no plain adapter does")
    if layout.cores or cohort.slot:
        return _plain_adapter(model, cohort.select([client]), adapter)
    layers: dict[str, tuple[Tensor, Tensor]] = dict(adapter.layers)
    for module, dense in cohort.deltas.get(client, {}).items():
        a, b = (part.double() for part in layers[module])
        own = delta(a, b, layout.alpha / a.shape[0])
        a, b = factor_dense(dense.double() + own, torch.finfo(dense.dtype).eps)
        layers[module] = (a.to(dense.dtype), (b * (a.shape[0] / layout.alpha)).to(dense.dtype))
    return Adapter.of(layers, adapter.head)


def _plain_adapter(model: Model, single: Cohort, adapter: Adapter) -> Adapter:
    """What one client's changes come to, module by module, with what is padding left out."""
    layers, biases = {}, {}
    changes = changes_of(model.layout, model.bases, stack_cohorts([single]))
    for module, change in changes.items():
        a, b = change.a[0], change.b[0]
        used = (a.abs().sum(1) > 0) & (b.abs().sum(0) > 0)
        used[0] = True  # a rank of zero is none
        scale = int(used.sum()) / single.layout.alpha  # undoes the alpha / rank of whoever loads it
        layers[module] = (a[used], b[:, used] * scale)
        if change.offset is not None:
            biases[module] = (b @ change.offset[0]) * scale
    return Adapter.of(layers, adapter.head, biases)
