"""Who holds an adapter: usually one client, under `pooled` all clients of a task together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atlas.federation.clients import ClientData


@dataclass(frozen=True)
class Holder:
    """One adapter's training data and the clients it is judged by."""

    data: ClientData
    members: tuple[ClientData, ...]

    @property
    def id(self) -> str:
        """The id the server knows it by."""
        return self.data.id


def one_each(clients: Sequence[ClientData]) -> list[Holder]:
    """Every client holds its own adapter."""
    return [Holder(client, (client,)) for client in sorted(clients, key=lambda c: c.id)]


def one_per_task(clients: Sequence[ClientData]) -> list[Holder]:
    """Clients with the same task and backbone share one adapter, trained on all their data."""
    groups: dict[tuple[str, str], list[ClientData]] = {}
    for client in sorted(clients, key=lambda c: c.id):
        groups.setdefault((client.task.name, client.backbone), []).append(client)
    holders: list[Holder] = []
    for (task, _), members in sorted(groups.items()):
        number = 1 + sum(holder.data.task.name == task for holder in holders)
        pooled = replace(
            members[0],
            id=f"pooled-{task}" if number == 1 else f"pooled-{task}-{number}",
            train=tuple(example for member in members for example in member.train),
            validation=tuple(example for member in members for example in member.validation),
            test=(),
        )
        holders.append(Holder(pooled, tuple(members)))
    return holders


POOLS = {"none": one_each, "task": one_per_task}
