"""The `deliver` task of the local engine: what a client does with a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from atlas.engines.choosing import clearly_better
from atlas.engines.local.groups import Group
from atlas.federation.adapters.cohort import Adapter, Cohort
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.batching.store import Rows
from atlas.federation.mixing.deliver import Taken
from atlas.federation.training.evaluate import Scores, predict_rows, score_labels
from atlas.ops.metrics import example_weights


def validate(group: Group, cohort: Cohort, clients: Sequence[str]) -> dict[str, Scores]:
    """Scores of clients' adapters in `cohort` on their own validation data."""
    picks = [group.store.rows(f"{client}/validation") for client in clients]
    tasks = [group.holders[client].data.task for client in clients]
    stack = stack_cohorts([cohort.select(clients)])
    return dict(zip(clients, score_labels(group.store, stack, picks, tasks), strict=True))


def replace_held(group: Group, offers: Mapping[str, Sequence[Adapter]]) -> dict[str, Taken]:
    """Plain delivery: the one mixture offered becomes the client's adapter."""
    group.arms["held"] = group.arms["held"].put({c: one[0] for c, one in offers.items() if one})
    return {client: Taken(0, 1.0 if one else 0.0) for client, one in offers.items()}


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
    """Clients whose shadow is right clearly more often than what they hold."""
    picks = [group.store.rows(f"{client}/validation") for client in clients]
    held, shadow = (_faults(group, arm, clients, picks) for arm in ("held", "shadow"))
    return [
        client
        for client, one, other in zip(clients, shadow, held, strict=True)
        if clearly_better(one, other, group.margin)
    ]


def _faults(
    group: Group, arm: str, clients: Sequence[str], picks: Sequence[Rows]
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
