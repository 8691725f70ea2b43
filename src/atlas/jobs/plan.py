"""What a federation would do before it trains: who takes part, with which ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas.build import build_federation
from atlas.config.load import load_config


def plan_run(source: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The plan as plain values.

    `clusters` is None and `budgets` is empty where the strategy plans none.
    """
    federation = build_federation(load_config(source, overrides))
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
        "clusters": None,
        "ranks": {client: list(ranks) for client, ranks in sorted(federation.ranks.items())},
        "budgets": {},
    }
