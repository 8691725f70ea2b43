"""From a strategy's relation to the W of a round, and from W to the mixed cohort.

W is a matrix for few clients and sparse rows for many. What a relation says is checked and comes
under the policies for absent clients (`relate`); every module is then mixed in the strategy's
space, heads within label sets (`mix_cohort`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from atlas.config.plan import RelationSettings
from atlas.federation.adapters.adapter import Member, factor_names, heads_of
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.server import RunPlan, ServerState
from atlas.federation.strategies.base import View
from atlas.ops.clustering.clusters import canonical
from atlas.ops.graph import sparse_rows as sparse
from atlas.ops.graph.sparse_rows import SharedRows, restrict_groups
from atlas.ops.lowrank import mixing
from atlas.ops.lowrank.factors import squared_norms
from atlas.ops.lowrank.mixing import (
    MIXERS,
    mix_rows,
    mixture_error,
    restrict,
    stack_factors,
)
from atlas.ops.lowrank.mixing_sparse import SPARSE_MIXERS, mix_linear, stack_sparse
from atlas.runs.cores import side_by_side

Weights = Tensor | SharedRows
"""Row-stochastic [n, n]; as a tensor also one per module, [modules, n, n]."""


def identity(n: int) -> Weights:
    """Nobody learns from anybody."""
    if n <= sparse.LARGEST_DENSE:
        return torch.eye(n, dtype=torch.float64)
    return sparse.identity_rows(n)


def settle(weights: Weights, usable: Tensor, present: Tensor | None) -> Weights:
    """Check W, and leave out whom nothing is known of.

    Args:
        weights: What a relation says.
        usable: Whom others may learn from, bool [n].
        present: Who receives a mixture, bool [n]; None: everybody.
    """
    if isinstance(weights, SharedRows):
        sparse.check_rows(weights)
        kept = sparse.restrict_columns(weights, usable.numpy())
        return kept if present is None else sparse.keep_own(kept, ~present.numpy())
    mixing.check_mixing(weights)
    found = mixing.restrict(weights, usable)
    if present is None:
        return found
    own = torch.eye(len(usable), dtype=found.dtype, device=found.device)
    return torch.where(present[:, None], found, own)


def keeps_own(weights: Weights) -> Tensor:
    """Which clients learn from nobody, bool [n]."""
    if isinstance(weights, SharedRows):
        return torch.from_numpy(sparse.keeps_own_row(weights))
    return mixing.keeps_own(weights)


def same(one: Weights, two: Weights) -> bool:
    """Whether both are equal to the bit."""
    if isinstance(one, SharedRows) and isinstance(two, SharedRows):
        return sparse.same_rows(one, two)
    return isinstance(one, Tensor) and isinstance(two, Tensor) and torch.equal(one, two)


def mix_cohort(cohort: Cohort, weights: Weights, *, space: str, heads: str) -> Cohort:
    """Apply W to a cohort.

    Args:
        cohort: The adapters as trained.
        weights: W [n, n], as sparse rows or a matrix, or one matrix per module [modules, n, n].
        space: A name in `ops.mixing.MIXERS`, which keep ranks, or `stack`, in which members come
            back with the ranks of all they learn from.
        heads: `mix` (between clients of one label set) or `personal` (left alone).
    """
    if isinstance(weights, SharedRows):
        return mix_sparsely(cohort, weights, space=space, heads=heads)
    mixed, ranks = dict(cohort.tensors), []
    layers = len(cohort.layout.modules)
    per_module = weights if weights.dim() == 3 else weights.expand(layers, -1, -1)
    for i, module in enumerate(cohort.layout.modules):
        layer = cohort.layer(i)
        w = per_module[i].to(layer.a.device)
        if space == "stack":
            a, b, size = stack_factors(*layer, w)
        else:
            (a, b), size = MIXERS[space](*layer, w), layer.ranks
        mixed.update(zip(factor_names(module), (a, b), strict=True))
        ranks.append(size.tolist())
    if heads == "mix":
        overall = weights.mean(0) if weights.dim() == 3 else weights
        within = restrict(overall, same_labels(cohort.members))
        for name in heads_of(mixed):
            mixed[name] = mix_rows(mixed[name], within.to(mixed[name].device))
    return replace(cohort, members=_with_ranks(cohort.members, ranks), tensors=mixed)


def mix_sparsely(cohort: Cohort, weights: SharedRows, *, space: str, heads: str) -> Cohort:
    """Apply sparse rows to a cohort, a module on each core; arguments as in `mix_cohort`."""
    mixed, ranks = dict(cohort.tensors), []

    def mix_module(i: int) -> tuple[Tensor, Tensor, Tensor]:
        layer = cohort.layer(i)
        if space == "stack":
            return stack_sparse(*layer, weights)
        return (*SPARSE_MIXERS[space](*layer, weights), layer.ranks)

    modules = cohort.layout.modules
    found = side_by_side([partial(mix_module, i) for i in range(len(modules))])
    for module, (a, b, size) in zip(modules, found, strict=True):
        mixed.update(zip(factor_names(module), (a, b), strict=True))
        ranks.append(size.tolist())
    if heads == "mix":
        sets = canonical([member.label_set for member in cohort.members])
        within = restrict_groups(weights, np.array(sets))
        for name in heads_of(mixed):
            mixed[name] = mix_linear(mixed[name], within)
    return replace(cohort, members=_with_ranks(cohort.members, ranks), tensors=mixed)


def _with_ranks(
    members: Sequence[Member], per_module: Sequence[Sequence[int]]
) -> tuple[Member, ...]:
    per_client = zip(*per_module, strict=True)
    return tuple(
        replace(member, ranks=tuple(ranks))
        for member, ranks in zip(members, per_client, strict=True)
    )


def same_labels(members: Sequence[Member]) -> Tensor:
    """Which pairs of clients may mix heads: bool [n, n]."""
    return torch.tensor([[one.label_set == two.label_set for two in members] for one in members])


def change_norms(cohort: Cohort) -> Tensor:
    """How much each client's adapter changes the model: the norm of all its dW together [n]."""
    squares = torch.zeros(len(cohort.members), dtype=torch.float64)
    for i in range(len(cohort.layout.modules)):
        a, b, _, scales = cohort.layer(i)
        squares += (squared_norms(a.double(), b.double()) * scales.square()).cpu()
    return squares.sqrt()


def describe_error(trained: Cohort, mixed: Cohort, weights: Tensor) -> dict[str, float] | None:
    """The relative error of the mixtures against the exact ones, mean and worst over clients.

    A client whose row is e_k has no mixture; None if that is so for all.
    """
    own = keeps_own(weights)
    if bool(own.all()):
        return None
    modules = range(len(trained.layout.modules))
    before, after = ([cohort.layer(i) for i in modules] for cohort in (trained, mixed))
    found = mixture_error(before, after, weights)[~own]
    return {"mean": float(found.mean()), "worst": float(found.max())}


ALPHAS = (0.3, 1.0, 3.0, 10.0)
"""What a client's validation data chooses from where alpha is `auto`."""


def choices(settings: RelationSettings) -> list[RelationSettings]:
    """The settings between which clients choose: one of them, unless alpha is `auto`."""
    if settings.alpha != "auto":
        return [settings]
    return [settings.model_copy(update={"alpha": alpha}) for alpha in ALPHAS]


def view_of(plan: RunPlan, state: ServerState, cohort: Cohort, number: int) -> View:
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
        # At most once a round, though the relation is asked once for each of the `choices`.
        norms=cache(partial(change_norms, cohort)),
    )


def relate(plan: RunPlan, view: View, replied: set[str]) -> list[Weights]:
    """The W of the view's round, one for each of the `choices` between which clients choose."""
    if not replied or view.round <= plan.relation.warmup or not _ready(plan, view):
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


def _ready(plan: RunPlan, view: View) -> bool:
    """Whether what the relation needs is known; if nobody sent a fingerprint, it is not."""
    return plan.strategy.plans == "nothing" or view.features is not None
