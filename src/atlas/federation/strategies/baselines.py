"""What every method is held against: alone, averaged, told the tasks, and pooled.

- `local`: every client for itself.
- `fedavg` (McMahan et al. 2017): products of adapters, weighted by data, are averaged and, within
  one label set, heads; `fedavg-body` leaves heads personal.
- `oracle`: strict averaging among the clients of one task, what clusters could do at best. It reads
  the task labels that a real federation has to find out, so it is a yardstick.
- `pooled`: the ceiling, one adapter per task, trained on the data of all its clients together.
"""

from __future__ import annotations

from torch import Tensor

from atlas.federation.strategies.base import Strategy, View, data_shares, identity, register
from atlas.ops.graph.affinity import group_shares

FEDAVG = register(
    Strategy(name="fedavg", relation=data_shares, about="one adapter for all, the mean of all")
)
FEDAVG_BODY = register(
    Strategy(
        name="fedavg-body",
        relation=data_shares,
        heads="personal",
        about="fedavg, but heads never leave their client",
    )
)


LOCAL = register(
    Strategy(name="local", relation=identity, about="every client for itself; a baseline")
)


def same_task(view: View) -> Tensor:
    """The data-weighted mean of the clients of one's own task."""
    return group_shares(view.tasks, view.examples)


ORACLE = register(
    Strategy(name="oracle", relation=same_task, about="is told the tasks; what clusters do at best")
)


POOLED = register(
    Strategy(
        name="pooled",
        relation=identity,
        pool="task",
        about="the ceiling: one adapter per task, trained on all its clients' data",
    )
)
