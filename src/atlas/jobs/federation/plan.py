"""The plan of a federation: shown by `atlas plan`, made once by a run, kept beside its rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from atlas.build.federation import Federation, build_federation
from atlas.config.load import load_federation
from atlas.errors import InputError
from atlas.federation.prepare import compare_clients, describe_plan, hand_out, make_plan
from atlas.jobs.federation.own_data import describe_data
from atlas.jobs.runner import set_threads
from atlas.ops.clustering.clusters import adjusted_rand, purity
from atlas.runs.checkpoint import Checkpoint, latest_round, save_round
from atlas.runs.events import Observe, Progress, ignore
from atlas.runs.folder import RunFolder


def plan_start(federation: Federation, folder: RunFolder, observe: Observe) -> None:
    """Make the plan and keep what clients sent for it."""
    make_plan(federation.plan, federation.state, federation.engine, observe)
    state = federation.state
    sketches = {c: s for found in state.planned.values() for c, s in found.sketches.items()}
    if sketches or state.granted:
        tensors = {f"{c}|{name}": t for c, s in sketches.items() for name, t in s.items()}
        save_round(folder.plan, 0, tensors=tensors, meta={"allotted": state.granted}, blobs={})


def plan_again(federation: Federation, folder: RunFolder) -> None:
    """Draw up the same plan from what was kept; clients are not asked again.

    Raises:
        InputError: If it is missing or does not fit this run.
    """
    plan, state = federation.plan, federation.state
    if plan.looks == "nothing" and not plan.sites:
        return
    saved = latest_round(folder.plan)
    if saved is None:
        raise InputError(f"{folder.plan}: the plan of this run is missing or damaged")
    if plan.looks != "nothing":
        compare_clients(plan, state, kept_prints(federation, folder, saved))
    state.granted = kept_grants(federation, folder, saved)
    hand_out(state, federation.engine, state.granted, plan.seed)


def kept_grants(
    federation: Federation, folder: RunFolder, saved: Checkpoint
) -> dict[str, dict[str, Any]]:
    """What was granted to clients when the run began; empty where ranks were fixed.

    Raises:
        InputError: If it is damaged or does not fit this run.
    """
    meta: Any = saved.meta
    kept = meta.get("allotted", {})
    for client, entry in kept.items():
        ranks = entry.get("ranks")
        if client not in federation.holders or not isinstance(ranks, list):
            raise InputError(f"{folder.plan}: the ranks of {client} do not fit this run")
    found: dict[str, dict[str, Any]] = kept
    return found


def kept_prints(
    federation: Federation, folder: RunFolder, saved: Checkpoint
) -> dict[str, dict[str, Tensor]]:
    """The fingerprints a run has kept, by client.

    Raises:
        InputError: If they do not fit this run.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.tensors.whole().items():
        client, _, name = key.partition("|")
        found.setdefault(client, {})[name] = value
    expected = federation.plan.print_shapes
    for client, sketches in found.items():
        shapes = {name: tuple(value.shape) for name, value in sketches.items()}
        if client not in expected or shapes != dict(expected[client]):
            raise InputError(f"{folder.plan}: the fingerprint of {client} does not fit this run")
    return found


def planned_clusters(federation: Federation) -> dict[str, Any] | None:
    """The clusters of all cohorts together, as the summary has them; None without clusters."""
    entries: list[Mapping[str, Any]] = [
        entry for entry in describe_plan(federation.plan, federation.state) if entry.get("clusters")
    ]
    return join_clusters(entries) if entries else None


def join_clusters(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One account of the clusters of several cohorts, which never share a cluster.

    Args:
        entries: Described plans that have clusters.
    """
    labels: dict[str, int] = {}
    tasks: list[str] = []
    silhouettes: list[float] = []
    for entry in entries:
        found, first = entry["clusters"], len(set(labels.values()))
        own = [first + label for label in found["labels"]]
        labels |= dict(zip(entry["clients"], own, strict=True))
        tasks += entry["tasks"]
        if found["silhouette"] is not None:
            silhouettes += [found["silhouette"]] * len(own)
    numbers = list(labels.values())
    return {
        "k": len(set(numbers)),
        "silhouette": statistics.fmean(silhouettes) if silhouettes else None,
        "purity": purity(numbers, tasks)[0],
        "ari": adjusted_rand(numbers, tasks),
        "labels": labels,
    }


def plan_run(
    source: str,
    overrides: Sequence[str],
    watch: Observe | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The plan as plain values.

    `planned` has an entry per cohort whose fingerprints the strategy asks for; `clusters` is None
    and `budgets` is empty where the strategy plans none; `data` is empty where no client has files
    of its own.
    """
    config = load_federation(source, overrides)
    set_threads(config)
    federation = build_federation(config, progress)
    make_plan(federation.plan, federation.state, federation.engine, watch or ignore)
    clients = {
        holder.id: {
            "task": holder.data.task.name,
            "group": holder.data.group,
            "device": holder.data.device,
            "backbone": federation.models[holder.id].backbone.name,
            "train": len(holder.data.train),
            "validation": len(holder.data.validation),
            "test": sum(len(member.test) for member in holder.members),
        }
        for holder in federation.holders.values()
    }
    return {
        "strategy": federation.plan.strategy.name,
        "clients": clients,
        "data": describe_data(federation),
        "planned": describe_plan(federation.plan, federation.state),
        "clusters": planned_clusters(federation),
        "ranks": {client: list(ranks) for client, ranks in sorted(federation.ranks.items())},
        "budgets": federation.state.granted,
    }
