"""What every method is held against: alone, averaged, told the tasks, and pooled.

- `local`: every client for itself.
- `fedavg` (McMahan et al. 2017): products of adapters, weighted by data, are averaged and, within
  one label set, heads; `fedavg-body` leaves heads personal.
- `oracle`: strict averaging among the clients of one task, what clusters could do at best. It reads
  the task labels that a real federation has to find out, so it is a yardstick.
- `pooled`: the ceiling, one adapter per task, trained on the data of all its clients together.
"""

from __future__ import annotations

from atlas.federation.strategies.base import Strategy, register
from atlas.federation.strategies.relations_sparse import (
    scaled_data_shares,
    scaled_identity,
    scaled_same_task,
)

FEDAVG = register(
    Strategy(
        name="fedavg", relation=scaled_data_shares, about="one adapter for all, the mean of all"
    )
)
FEDAVG_BODY = register(
    Strategy(
        name="fedavg-body",
        relation=scaled_data_shares,
        heads="personal",
        about="fedavg, but heads never leave their client",
    )
)


LOCAL = register(
    Strategy(
        name="local",
        relation=scaled_identity,
        sends="nothing",
        about="every client for itself; a baseline",
    )
)


ORACLE = register(
    Strategy(
        name="oracle",
        relation=scaled_same_task,
        about="is told the tasks; what clusters do at best",
    )
)


POOLED = register(
    Strategy(
        name="pooled",
        relation=scaled_identity,
        pool="task",
        sends="nothing",
        about="the ceiling: one adapter per task, trained on all its clients' data",
    )
)
