"""The `capacity` and `assign` tasks of the local engine: what fits, and what it really takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from atlas.config.training import TrainSettings
from atlas.engines.local.groups import ClientGroup
from atlas.federation.adapters.cohort import Cohort, Slot
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.batching.store import ExampleStore
from atlas.federation.prepare import regraded
from atlas.federation.training.loop import Clock, Course, Lesson, fit
from atlas.federation.training.split import lower_half, on_device
from atlas.runs.peak_memory import peak_bytes

OWN_ARMS = ("held", "personal")
"""The arms that a client trains for itself, in one pass as `fit_group` does."""


def tell_capacity(group: ClientGroup, client: str, batch: int) -> dict[str, object]:
    """What a batch of a client's training texts can hold at most; see `LargestBatch`."""
    store = group.store
    rows = store.rows(f"{client}/train")
    # Rows of a small client repeat no text: its batch is as large as its data.
    lengths = np.sort(store.lengths_of(rows))[::-1][:batch]
    answers = [] if store.targets is None else np.sort(store.counts_of(rows))[::-1][:batch].tolist()
    return {"lengths": lengths.tolist(), "answers": answers}


def take_ranks(group: ClientGroup, ranks: Mapping[str, Sequence[int]], seed: int) -> None:
    """Start some clients of a group again with other ranks; the others stay as they are.

    Raises:
        ValueError: If there is not one rank of a possible size for every adapted module.
    """
    widths = group.model.layout.widths
    for client, own in ranks.items():
        fitting = [1 <= rank <= min(width) for rank, width in zip(own, widths, strict=False)]
        if len(own) != len(widths) or not all(fitting):
            raise ValueError(f"ranks {list(own)} of {client} do not fit {len(widths)} modules")
    for client in ranks:
        group.sent.pop(client, None)
    for arm, cohort in list(group.arms.items()):
        start = regraded(cohort, ranks, seed)
        group.arms[arm] = _keep_others(cohort, start, ranks)
        kept = group.moments.pop(arm, None)
        if kept is not None and set(ranks) != set(cohort.clients):
            group.moments[arm] = kept.restarted(start, list(ranks))


def _keep_others(cohort: Cohort, start: Cohort, starting: Collection[str]) -> Cohort:
    """`start`, just made, with all clients but those `starting` as they are in `cohort`."""
    others = [client for client in cohort.clients if client not in starting]
    for client in others:
        start.fill(start.places[client], cohort.take(client))
    dense = {client: cohort.deltas[client] for client in others if client in cohort.deltas}
    slot = start.slot
    if cohort.slot and slot:
        beside = _keep_others(cohort.slot.cohort, slot.cohort, starting)
        slot = Slot(beside, cohort.slot.without(starting).ready)
    return replace(start, deltas=dense, slot=slot)


def take_split(group: ClientGroup, client: str, point: object) -> None:
    """From now on a client runs `point` blocks itself; None for all of them.

    Raises:
        ValueError: If that leaves no block to a server.
    """
    if point is None:
        group.splits.pop(client, None)
    elif type(point) is int and 1 <= point < group.model.backbone.depth:
        group.splits[client] = point
    else:
        raise ValueError(f"split point {point!r} of {client}: {group.model.backbone.depth} blocks")


def trial_bytes(group: ClientGroup, client: str, settings: TrainSettings, seed: int) -> int:
    """Memory that training takes, measured: one step on the client's longest texts.

    Of a split step it is the client's half. What the step trained is thrown away. A shadow is no
    part of it: a run has one to tell what the federation was worth; see `docs/ranks.md`.
    """
    holder, backbone = group.holders[client], group.model.backbone
    lengths = group.store.lengths_of(group.store.rows(f"{client}/train"))
    longest = np.argsort(-lengths, kind="stable")[: settings.batch]
    examples = [holder.data.train[i] for i in longest]
    part = {client: (holder.data.task, examples)}
    # A step without the cache, as a small device would do it.
    store = ExampleStore(replace(group.model, prefix=None), part, group.limits.max_length)
    # By itself: in the group's stack it is padded to the largest rank of all.
    arms = [group.arms[arm] for arm in OWN_ARMS if arm in group.arms]
    own = [regraded(arm.select([client]), {}, seed) for arm in arms]
    stack = stack_cohorts(own)
    rows = store.rows(client)
    lessons = [Lesson(client, rows, rows[:0]) for _ in own]
    one = settings.model_copy(update={"epochs": None, "steps": 1, "early_stop": None})

    point = group.splits.get(client)

    def step() -> None:
        with torch.enable_grad():
            if point is None:
                fit(store, Course(stack, lessons), one, Clock(seed, 1, 1))
            else:
                lower_half(group.model, stack, store.batch([rows] * len(own)), point)

    size = backbone.size
    blocks = sum(size.blocks[:point])
    weights = size.embeddings + blocks + (size.top if point is None else 0)
    slots = [arm.slot.cohort for arm in own if arm.slot]
    stacked = [entry for part in (*own, *slots) for entry in part.tensors.items()]
    resident = sum(v.nbytes for name, v in stacked if point is None or on_device(name, point))
    return weights + resident + peak_bytes(step, backbone.device)
