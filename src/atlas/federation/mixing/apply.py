"""A cohort under W: every module in the strategy's space, heads within label sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from atlas.federation.adapters.cohort import Cohort, Member
from atlas.federation.weights import Weights
from atlas.ops.clustering.clusters import canonical
from atlas.ops.graph.sparse_rows import SharedRows, restrict_groups
from atlas.ops.lowrank.factors import squared_norms
from atlas.ops.lowrank.mixing import MIXERS, keeps_own, mix_rows, restrict
from atlas.ops.lowrank.mixing_sparse import mix_linear, mix_sparse
from atlas.ops.stacking import mixture_error, stack_factors


def mix_cohort(cohort: Cohort, weights: Weights, *, space: str, heads: str) -> Cohort:
    """Apply W to a cohort.

    Args:
        cohort: The adapters as trained.
        weights: W [n, n], or one per module [modules, n, n]. Sparse rows are mixed as such in
            product space; the other spaces take them as a matrix.
        space: A name in `ops.mixing.MIXERS`, which keep ranks, or `stack`, in which members come
            back with the ranks of all they learn from.
        heads: `mix` (between clients of one label set) or `personal` (left alone).
    """
    if isinstance(weights, SharedRows):
        if space == "product":
            return mix_sparsely(cohort, weights, heads=heads)
        weights = weights.dense()
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
        mixed[f"lora_a/{module}"], mixed[f"lora_b/{module}"] = a, b
        ranks.append(size.tolist())
    if heads == "mix":
        overall = weights.mean(0) if weights.dim() == 3 else weights
        within = restrict(overall, same_labels(cohort.members))
        for name in [name for name in mixed if name.startswith("head/")]:
            mixed[name] = mix_rows(mixed[name], within.to(mixed[name].device))
    return replace(cohort, members=_with_ranks(cohort.members, ranks), tensors=mixed)


def mix_sparsely(cohort: Cohort, weights: SharedRows, *, heads: str) -> Cohort:
    """Apply sparse rows to a cohort in product space; arguments as in `mix_cohort`."""
    mixed = dict(cohort.tensors)
    for i, module in enumerate(cohort.layout.modules):
        a, b = mix_sparse(*cohort.layer(i), weights)
        mixed[f"lora_a/{module}"], mixed[f"lora_b/{module}"] = a, b
    if heads == "mix":
        sets = canonical([member.label_set for member in cohort.members])
        within = restrict_groups(weights, np.array(sets))
        for name in [name for name in mixed if name.startswith("head/")]:
            mixed[name] = mix_linear(mixed[name], within)
    return replace(cohort, tensors=mixed)


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
