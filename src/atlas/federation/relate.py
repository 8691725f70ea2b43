"""The W of a round: what the strategy's relation says, after the policies for absent clients."""

from __future__ import annotations

from dataclasses import replace

import torch

from atlas.config.plan import RelationSettings
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.mixing.apply import change_norms
from atlas.federation.plan import Plan
from atlas.federation.server import ServerState
from atlas.federation.strategies.base import View
from atlas.federation.weights import Weights, identity, same, settle

ALPHAS = (0.3, 1.0, 3.0, 10.0)
"""What a client's validation data chooses from where alpha is `auto`."""


def choices(settings: RelationSettings) -> list[RelationSettings]:
    """The settings between which clients choose: one of them, unless alpha is `auto`."""
    if settings.alpha != "auto":
        return [settings]
    return [settings.model_copy(update={"alpha": alpha}) for alpha in ALPHAS]


def view_of(plan: Plan, state: ServerState, cohort: Cohort, number: int) -> View:
    """What a relation may look at in round `number`."""
    clients = cohort.clients
    planned = state.planned_for(cohort)
    examples = [state.examples.get(client, 0) for client in clients]
    return View(
        clients=clients,
        examples=torch.tensor(examples, dtype=torch.float64),
        tasks=tuple(plan.tasks[client] for client in clients),
        round=number,
        features=planned.features(clients),
        clusters=planned.labels(clients),
        settings=plan.relation,
        norms=change_norms(cohort),
    )


def relate(
    plan: Plan, state: ServerState, cohort: Cohort, replied: set[str], number: int
) -> list[Weights]:
    """The W of this round, one for each of the `choices` between which clients choose."""
    view = view_of(plan, state, cohort, number)
    if not replied or number <= plan.relation.warmup or not _ready(plan, view):
        return [identity(len(view.clients))]
    known = set(replied)
    if plan.absent == "last":
        known |= {c for c, count in zip(view.clients, view.examples.tolist(), strict=True) if count}
    usable = torch.tensor([client in known for client in view.clients])
    present = torch.tensor([client in replied for client in view.clients])
    within_reach = present if plan.strategy.reach == "present" else None
    found = [
        settle(plan.strategy.relation(replace(view, settings=settings)), usable, within_reach)
        for settings in choices(plan.relation)
    ]
    # Where alpha makes no difference there is nothing to choose.
    return found if any(not same(found[0], other) for other in found) else found[:1]


def _ready(plan: Plan, view: View) -> bool:
    """Whether what the relation needs is known; if nobody sent a fingerprint, it is not."""
    return plan.strategy.plans == "nothing" or view.features is not None
