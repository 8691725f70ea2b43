"""The `deliver` task of the local engine: what a client does with a mixture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from atlas.engines.groups import Group
from atlas.federation.cohort import Adapter, Cohort
from atlas.federation.deliver import Taken
from atlas.federation.evaluate import Scores, predict_rows, score_labels
from atlas.federation.forward import stack_cohorts
from atlas.federation.store import Rows
from atlas.ops.metrics import example_weights
from atlas.ops.mixing import mix_b, mix_product
from atlas.ops.statistics import lead_of


def fitness(scores: Scores) -> float:
    """How well a mixture suits a client: its loss, since a metric of few examples is too coarse.

    In the first rounds most shares score alike, and whoever then keeps to itself never learns.
    """
    return -scores["loss"] if math.isfinite(scores["loss"]) else -math.inf


def validate(group: Group, cohort: Cohort, clients: Sequence[str]) -> dict[str, Scores]:
    """Scores of clients' adapters in `cohort` on their own validation data."""
    picks = [group.store.rows(f"{client}/validation") for client in clients]
    tasks = [group.holders[client].data.task for client in clients]
    stack = stack_cohorts([cohort.select(clients)])
    return dict(zip(clients, score_labels(group.store, stack, picks, tasks), strict=True))


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


def replace_held(group: Group, offers: Mapping[str, Sequence[Adapter]]) -> dict[str, Taken]:
    """Plain delivery: the one mixture offered becomes the client's adapter."""
    group.arms["held"] = group.arms["held"].put({c: one[0] for c, one in offers.items() if one})
    return {client: Taken(0, 1.0 if one else 0.0) for client, one in offers.items()}


def choose_best(group: Group, offers: Mapping[str, Sequence[Adapter]]) -> dict[str, Taken]:
    """The loss on validation data decides which mixture is taken, and how much of it.

    Ties go to the smaller share, then to the earlier mixture.
    """
    best = _best_blends(group, offers)
    group.arms["held"] = group.arms["held"].put({c: one.adapter for c, one in best.items()})
    return {client: one.taken for client, one in best.items()}


@dataclass(frozen=True)
class _Choice:
    scores: Scores
    taken: Taken
    adapter: Adapter


def _best_blends(group: Group, offers: Mapping[str, Sequence[Adapter]]) -> dict[str, _Choice]:
    clients = sorted(offers)
    held = group.arms["held"].select(clients)
    # A client whose own training blew up has nothing to blend with.
    lost = {c: one[0] for c, one in offers.items() if one and not _finite(held.take(c))}
    own = held.put(lost)
    best: dict[str, _Choice] = {}

    def judge_all(cohort: Cohort, asked: Sequence[str], taken: Taken) -> None:
        for client, scores in validate(group, cohort, asked).items():
            if client not in best or fitness(scores) > fitness(best[client].scores):
                best[client] = _Choice(scores, taken, cohort.take(client))

    # Without the choice of taking nothing, one's own adapter is for those who were offered none.
    keepers = [c for c in clients if 0.0 in group.shares or not offers[c]]
    if keepers:
        judge_all(own, keepers, Taken(0, 0.0))
    for share in (share for share in group.shares if share):
        for pick in range(max(len(one) for one in offers.values())):
            given = {c: one[pick] for c, one in offers.items() if pick < len(one)}
            if given:
                judge_all(blend(own, held.put(given), share), sorted(given), Taken(pick, share))
    return best


def _finite(adapter: Adapter) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in adapter.values())


def arm_in_use(group: Group) -> str:
    """The arm clients answer with: a personal adapter goes before what they hold to share."""
    return "personal" if "personal" in group.arms else "held"


def final_cohort(group: Group, arm: str) -> Cohort:
    """The adapters that count at the end.

    `alone` is the shadow. `final` is what clients hold; where the best is kept, a client whose
    validation data speaks clearly for training alone gets that.
    """
    if arm == "alone":
        return group.arms["shadow"]
    if not group.keeps_best:
        return group.arms[arm_in_use(group)]
    solo = {c: group.arms["shadow"].take(c) for c in better_alone(group, sorted(group.holders))}
    return group.arms["held"].put(solo)


def better_alone(group: Group, clients: Sequence[str]) -> list[str]:
    """Clients whose shadow beats what they hold by more than one standard error of the difference.

    A hundred examples tell two models apart to some five points. Going by the sign alone would
    often give up what was learned from others for what chance made look better.
    """
    picks = [group.store.rows(f"{client}/validation") for client in clients]
    found = []
    marks = [_marks(group, arm, clients, picks) for arm in ("held", "shadow")]
    for client, held, shadow in zip(clients, *marks, strict=True):
        if not np.isfinite(held).all():
            found.append(client)
        elif np.isfinite(shadow).all():
            lead, error = lead_of(shadow, held)
            found += [client] if lead > error else []
    return found


def _marks(
    group: Group, arm: str, clients: Sequence[str], picks: Sequence[Rows]
) -> list[NDArray[np.float64]]:
    """How right every validation example is, by client; causal tasks by their loss.

    Where a task's metric minds rare classes, so does the weight of an example.
    """
    stack = stack_cohorts([group.arms[arm].select(clients)])
    losses, predicted = predict_rows(group.store, stack, picks)
    truth = group.store.labels.cpu().numpy()
    marks = []
    for row, client in enumerate(clients):
        task, labels = group.holders[client].data.task, truth[picks[row]]
        if task.kind == "causal":
            marks.append(-losses[row])
            continue
        right = (predicted[row] == labels) * example_weights(labels, task.metric)
        # Broken logits still have a largest entry; such a model is right about nothing.
        marks.append(np.where(np.isfinite(losses[row]), right, -np.inf))
    return marks
