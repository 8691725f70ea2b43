"""The `deliver` task of the local engine: what a client does with a mixture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from atlas.engines.groups import Group, Judgement
from atlas.federation.cohort import Adapter, Cohort
from atlas.federation.evaluate import Scores, score_labels
from atlas.federation.forward import stack_cohorts
from atlas.ops.mixing import mix_product

ACCEPTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def judge(scores: Scores) -> Judgement:
    """The task's own metric first, the loss to tell equals apart; causal tasks by loss alone."""
    found = (scores["score"], -scores["loss"]) if "score" in scores else (-scores["loss"],)
    # Broken logits still have a largest entry and so a score; it must never count.
    return found if math.isfinite(scores["loss"]) else (-math.inf,) * len(found)


def validate(group: Group, cohort: Cohort, clients: Sequence[str]) -> dict[str, Scores]:
    """Scores of clients' adapters in `cohort` on their own validation data."""
    picks = [group.store.rows(f"{client}/validation") for client in clients]
    tasks = [group.holders[client].data.task for client in clients]
    stack = stack_cohorts([cohort.select(clients)])
    return dict(zip(clients, score_labels(group.store, stack, picks, tasks), strict=True))


def blend(own: Cohort, mixture: Cohort, share: float) -> Cohort:
    """(1 - share) * own + share * mixture for every client, cut to its ranks in its own gauge."""
    if share in (0.0, 1.0):
        return mixture if share else own
    tensors = {
        name: value.lerp(mixture.tensors[name], share) for name, value in own.tensors.items()
    }
    weights = torch.tensor([[1 - share, share], [0.0, 1.0]], dtype=torch.float64)
    for i, module in enumerate(own.layout.modules):
        a, b = f"lora_a/{module}", f"lora_b/{module}"
        tensors[a], tensors[b] = tensors[a].clone(), tensors[b].clone()
        for row in range(len(own.members)):
            pair_a = torch.stack([own.tensors[a][row], mixture.tensors[a][row]])
            pair_b = torch.stack([own.tensors[b][row], mixture.tensors[b][row]])
            ranks = own.ranks(i)[[row, row]].to(pair_a.device)
            scales = own.scales(i)[[row, row]].to(pair_a.device)
            new_a, new_b = mix_product(pair_a, pair_b, ranks, scales, weights.to(pair_a.device))
            tensors[a][row], tensors[b][row] = new_a[0], new_b[0]
    return replace(own, tensors=tensors)


def replace_held(group: Group, mixtures: Mapping[str, Adapter]) -> dict[str, float]:
    """Plain delivery: the mixture becomes the client's adapter."""
    given = {client: adapter for client, adapter in mixtures.items() if adapter}
    group.arms["held"] = group.arms["held"].put(given)
    return {client: 1.0 if adapter else 0.0 for client, adapter in mixtures.items()}


def accept_best(group: Group, mixtures: Mapping[str, Adapter]) -> dict[str, float]:
    """Delivery under `keep_best`: validation data decides how much of the mixture is taken.

    Ties go to the smaller share. Both arms then remember their best adapter so far.
    """
    clients = sorted(mixtures)
    given = {client: adapter for client, adapter in mixtures.items() if adapter}
    held = group.arms["held"].select(clients)
    mixture = held.put(given)
    # A client whose own training blew up has nothing to blend with.
    own = held.put({c: adapter for c, adapter in given.items() if not _finite(held.take(c))})
    best: dict[str, tuple[Judgement, float]] = {}
    blends = {share: blend(own, mixture, share) for share in ACCEPTS}
    for share in ACCEPTS:
        asked = clients if share == 0.0 else sorted(given)
        for client, scores in validate(group, blends[share], asked).items() if asked else ():
            if client not in best or judge(scores) > best[client][0]:
                best[client] = (judge(scores), share)
    chosen = {c: blends[share].take(c) for c, (_, share) in best.items()}
    alone = validate(group, group.arms["shadow"], clients)
    # Nothing is written before everything is known, so that a failure leaves clients as they were.
    group.arms["held"] = group.arms["held"].put(chosen)
    remember_best(group, "held", {client: judgement for client, (judgement, _) in best.items()})
    remember_best(group, "shadow", {client: judge(scores) for client, scores in alone.items()})
    return {client: share for client, (_, share) in best.items()}


def _finite(adapter: Adapter) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in adapter.values())


def remember_best(group: Group, arm: str, judgements: Mapping[str, Judgement]) -> None:
    """Copy an arm's adapters that are better than their best so far."""
    known = group.judged.setdefault(arm, {})
    better = [c for c, found in judgements.items() if c not in known or found > known[c]]
    known.update({client: judgements[client] for client in better})
    adapters = {client: group.arms[arm].take(client) for client in better}
    group.arms[f"best_{arm}"] = group.arms[f"best_{arm}"].put(adapters)


def final_cohort(group: Group, arm: str) -> Cohort:
    """The adapters that count at the end.

    `alone` is the shadow. `final` is what clients hold; where the best is kept, each client gets
    the better of federated and alone on its validation data, a tie going to alone.
    """
    if "best_held" not in group.arms:
        return group.arms["shadow" if arm == "alone" else "held"]
    if arm == "alone":
        return group.arms["best_shadow"]
    fed, solo = group.judged.get("held", {}), group.judged.get("shadow", {})
    keep = {
        client: group.arms["best_shadow"].take(client)
        for client in solo
        if client not in fed or solo[client] >= fed[client]
    }
    return group.arms["best_held"].put(keep)
