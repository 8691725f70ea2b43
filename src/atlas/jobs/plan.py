"""What a federation would do before it trains: who takes part, who is like whom, which ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas.build.federation import build_federation
from atlas.config.load import load_federation
from atlas.engines.local.engine import Progress
from atlas.federation.prepare import describe_plan, make_plan
from atlas.federation.server import ignore
from atlas.jobs.federation.plan import planned_clusters
from atlas.jobs.runner import Watch, set_threads


def plan_run(
    source: str,
    overrides: Sequence[str],
    watch: Watch | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The plan as plain values.

    `planned` has an entry per cohort whose fingerprints the strategy asks for; `clusters` is None
    and `budgets` is empty where the strategy plans none.
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
        "planned": describe_plan(federation.plan, federation.state),
        "clusters": planned_clusters(federation),
        "ranks": {client: list(ranks) for client, ranks in sorted(federation.ranks.items())},
        "budgets": federation.state.allotted,
    }
