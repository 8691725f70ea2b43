"""From a strategy's relation to the W of a round, and from W to the mixed cohort.

W is a matrix for few clients and sparse rows for many. What a relation says is checked and comes
under the policies for absent clients (`relate`); every module is then mixed in the strategy's
space, heads within label sets (`mix_cohort`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from atlas.config.plan import RelationSettings
from atlas.federation.adapters.adapter import Member, heads_of
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.mixing.cutting import Cutting, as_rows
from atlas.federation.routing.masks import Routes
from atlas.federation.server import RunPlan, ServerState
from atlas.federation.signatures.gather import known_signatures
from atlas.federation.strategies.base import View
from atlas.ops.clustering.clusters import canonical
from atlas.ops.graph import sparse_rows as sparse
from atlas.ops.graph.sparse_rows import SharedRows, restrict_groups
from atlas.ops.lowrank import mixing
from atlas.ops.lowrank.factors import Layer, squared_norms
from atlas.ops.lowrank.gauge import gauge_residuals
from atlas.ops.lowrank.mixing import (
    MIXERS,
    ROTATED,
    mix_rows,
    mixture_error,
    restrict,
    stack_factors,
)
from atlas.ops.lowrank.mixing_sparse import (
    SPARSE_MIXERS,
    SPARSE_ROTATED,
    mix_by_recipe,
    mix_linear,
    stack_sparse,
)
from atlas.runs.cores import side_by_side

SPACES = {"core": "product"}
"""Where plain adapters are mixed in a space that is none of theirs."""
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


def routed(weights: Weights, routes: Routes | None, module: int) -> Weights:
    """W of one module: e_k where it is shut, nothing from whom it never came."""
    if routes is None:
        return weights
    return settle(weights, routes.known[:, module], routes.open[:, module])


def mix_cohort(  # noqa: PLR0913
    cohort: Cohort,
    weights: Weights,
    *,
    space: str,
    heads: str,
    align: str = "none",
    routes: Routes | None = None,
    cutting: Cutting | None = None,
) -> Cohort:
    """Apply W to a cohort.

    Args:
        cohort: The adapters as trained.
        weights: W [n, n], as sparse rows or a matrix, or one matrix per module [modules, n, n].
        space: A name in `ops.mixing.MIXERS`, which keep ranks, or `stack`, in which members come
            back with the ranks of all they learn from. Cores are mixed as they are in every space,
            for what is around them is the same for all.
        heads: `mix` (between clients of one label set) or `personal` (left alone).
        align: `rotate` turns the factors of each mixture to a common gauge first; `none` does not.
        routes: Which modules travel for whom; None if all do.
        cutting: In product space, another cut than the plain one.
    """
    if isinstance(weights, SharedRows):
        how = {"space": space, "heads": heads, "align": align}
        return mix_sparsely(cohort, weights, **how, routes=routes, cutting=cutting)
    mixers = ROTATED if align == "rotate" else MIXERS
    mixed, ranks = dict(cohort.tensors), []
    layers = len(cohort.layout.modules)
    per_module = weights if weights.dim() == 3 else weights.expand(layers, -1, -1)
    for i in range(layers):
        layer, names = cohort.layer(i), cohort.layout.parts(i)
        w = cast(Tensor, routed(per_module[i], routes, i)).to(layer.a.device)
        if cohort.layout.place(i):
            both, size = [mix_rows(mixed[name], w) for name in names], layer.ranks
        elif space == "stack":
            *both, size = stack_factors(*layer, w)
        elif cutting is not None:
            recipe = cutting.recipe(cohort, i)
            both, size = [*mix_by_recipe(layer, as_rows(w), recipe)], layer.ranks
        else:
            both, size = [*mixers[SPACES.get(space, space)](*layer, w)], layer.ranks
        mixed.update(zip(names, both, strict=True))
        ranks.append(size.tolist())
    if heads == "mix":
        overall = weights.mean(0) if weights.dim() == 3 else weights
        within = restrict(overall, same_labels(cohort.members))
        for name in heads_of(mixed):
            mixed[name] = mix_rows(mixed[name], within.to(mixed[name].device))
    return replace(cohort, members=_with_ranks(cohort.members, ranks), tensors=mixed)


def mix_sparsely(  # noqa: PLR0913
    cohort: Cohort,
    weights: SharedRows,
    *,
    space: str,
    heads: str,
    align: str = "none",
    routes: Routes | None = None,
    cutting: Cutting | None = None,
) -> Cohort:
    """Apply sparse rows to a cohort, a module on each core; arguments as in `mix_cohort`."""
    mixers = SPARSE_ROTATED if align == "rotate" else SPARSE_MIXERS
    mixed, ranks = dict(cohort.tensors), []

    def mix_module(i: int) -> tuple[Tensor, Tensor, Tensor]:
        layer, rows = cohort.layer(i), cast(SharedRows, routed(weights, routes, i))
        if cohort.layout.place(i):
            p, q = (mix_linear(mixed[name], rows) for name in cohort.layout.parts(i))
            return p, q, layer.ranks
        if space == "stack":
            return stack_sparse(*layer, rows)
        if cutting is not None:
            return (*mix_by_recipe(layer, rows, cutting.recipe(cohort, i)), layer.ranks)
        return (*mixers[SPACES.get(space, space)](*layer, rows), layer.ranks)

    modules = range(len(cohort.layout.modules))
    found = side_by_side([partial(mix_module, i) for i in modules])
    for i, (*both, size) in zip(modules, found, strict=True):
        mixed.update(zip(cohort.layout.parts(i), both, strict=True))
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


def describe_error(
    trained: Cohort, mixed: Cohort, weights: Tensor, cutting: Cutting | None = None
) -> dict[str, float] | None:
    """The relative error of the mixtures against the exact ones, mean and worst over clients.

    What was fed back is part of an exact mixture. A client whose row is e_k has no mixture; None
    if that is so for all.
    """
    own = keeps_own(weights)
    own = own.all(0) if own.dim() == 2 else own
    if bool(own.all()):
        return None
    before, rows = (cutting or Cutting()).sources(trained, weights)
    after = [mixed.layer(i) for i in range(len(mixed.layout.modules))]
    found = mixture_error(before, after, rows)[~own]
    return {"mean": float(found.mean()), "worst": float(found.max())}


def describe_gauge(trained: Cohort, weights: Tensor) -> dict[str, float] | None:
    """How far factors are from their mixture's reference, before they are turned and after.

    Relative to their own size; mean over those in a mixture, over mixtures and over modules. None
    if nobody learns from anybody.
    """
    found = []
    for i in range(len(trained.layout.modules)):
        rows = weights[i] if weights.dim() == 3 else weights
        moving = rows[~mixing.is_identity_row(rows)]
        layer = trained.layer(i)
        for row in torch.unique(moving, dim=0):
            heard = torch.nonzero(row > 0).flatten().to(layer.a.device)
            members = Layer(*(value[heard] for value in layer))
            found.append([part.mean() for part in gauge_residuals(members, row[heard])])
    if not found:
        return None
    before, after = torch.tensor(found, dtype=torch.float64).mean(0).tolist()
    return {"before": before, "after": after}


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
        signatures=known_signatures(state.signatures, clients),
        relevance=plan.relevance,
        kin=planned.kin,
        agreement=planned.agreement(clients) if plan.relation.affinity == "cosine" else None,
    )


def relate(plan: RunPlan, view: View, replied: set[str]) -> list[Weights]:
    """The W of the view's round, one for each of the `choices` between which clients choose."""
    if not replied or view.round <= plan.relation.warmup or not knows_enough(plan, view):
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


def knows_enough(plan: RunPlan, view: View) -> bool:
    """Whether what the relation needs is known; if nobody sent it, it is not."""
    told = plan.strategy.signature == "none" or view.signatures is not None
    return told and (plan.strategy.plans == "nothing" or view.features is not None)
