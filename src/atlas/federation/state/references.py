"""What server and client both know a client to start from, where its replies are changes of that.

At first it is the initial adapter; a reply moves it to what arrived, a delivery to what was taken.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from atlas.federation.adapters.adapter import Adapter, heads_of
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.exchange.compression import moved
from atlas.federation.strategies.base import Delivery


@dataclass
class References:
    """The server's side of it; all of it goes into the checkpoint.

    Attributes:
        cohorts: By the name of a cohort; empty where nothing is compressed.
    """

    cohorts: dict[str, Cohort] = field(default_factory=dict)

    @classmethod
    def at_start(cls, cohorts: Mapping[str, Cohort]) -> References:
        """Of clients that have sent nothing yet."""
        return cls({name: cohort.apart().put({}) for name, cohort in cohorts.items()})

    def of(self, client: str, names: Container[str]) -> Adapter:
        """What a client is known to start from, as far as it has these names."""
        own = [cohort for cohort in self.cohorts.values() if client in cohort.places]
        both = [cohort.take(client).only(names.__contains__) for cohort in own]
        return Adapter({name: value for known in both for name, value in known.items()})

    def arrived(self, adapters: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Some clients' replies came."""
        for name, cohort in self.cohorts.items():
            self.cohorts[name] = cohort.put(
                {
                    client: {k: v for k, v in adapter.items() if k in cohort.tensors}
                    for client, adapter in adapters.items()
                    if client in cohort.places
                }
            )

    def delivered(self, taken: Mapping[str, tuple[Adapter, float]], delivery: Delivery) -> None:
        """Some clients took a share of a mixture.

        Args:
            taken: What was taken, and how much of it.
            delivery: What became of it; see `Strategy.deliver`. Of what is merged only heads take
                a place; factors start again, which `arrived` is told.
        """
        if delivery == "global":
            return
        given = {client: found for client, found in taken.items() if found[1]}
        if delivery == "merge":
            self.arrived({client: heads_of(offer) for client, (offer, _) in given.items()})
            return
        self.arrived(
            {
                client: moved(self.of(client, offer), offer, s)
                for client, (offer, s) in given.items()
            }
        )
