"""Routing: all modules train, some of them travel; who decides is the server, a round ahead.

A module that is shut for a client is neither sent nor received by it. It is a W of its own for
every module: rows of clients for whom it is shut are e_k, and columns of those who never sent it
are left out. What a client sent before counts as it was then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atlas.config.plan import RouteSettings
from atlas.federation.adapters.adapter import adapter_shapes
from atlas.federation.adapters.cohort import Cohort
from atlas.ops.routing import blend_salience, choose_open
from atlas.runs.seeds import generator


@dataclass
class RouteState:
    """What is remembered of every client's modules; all of it goes into the checkpoint.

    Attributes:
        salience: What each module counts, smoothed over rounds.
        shut: Rounds for which each has been shut.
        sent: Whether each was ever sent.
    """

    salience: dict[str, list[float]] = field(default_factory=dict)
    shut: dict[str, list[int]] = field(default_factory=dict)
    sent: dict[str, list[bool]] = field(default_factory=dict)

    def choose(
        self, cohort: Cohort, settings: RouteSettings, budget: float, seed: int, number: int
    ) -> dict[str, list[bool]]:
        """What is open for every client of a cohort in a round, and remembered as such."""
        found = {}
        modules = len(cohort.layout.modules)
        for place, client in enumerate(cohort.clients):
            sizes = module_sizes(cohort, client)
            # Before anything is known, each client begins with other modules than the last.
            shut = self.shut.get(client) or [1 + (place + m) % modules for m in range(modules)]
            if settings.choice == "random":
                draw = generator(seed, "route", number, client)
                salience, shut = torch.from_numpy(draw.random(modules)), [0] * modules
            else:
                known = self.salience.get(client)
                salience = torch.tensor(known or [1.0] * modules, dtype=torch.float64)
            how = (settings.hysteresis, settings.waiting)
            found[client] = choose_open(salience, sizes, shut, budget, *how)
            waited = self.shut.get(client, [0] * modules)
            self.shut[client] = [
                0 if is_open else rounds + 1
                for is_open, rounds in zip(found[client], waited, strict=True)
            ]
        return found

    def learn(self, client: str, salience: Sequence[float], ema: float) -> None:
        """Remember what a client's modules counted in a round."""
        before = self.salience.get(client)
        old = None if before is None else torch.tensor(before, dtype=torch.float64)
        now = torch.tensor(salience, dtype=torch.float64)
        self.salience[client] = blend_salience(old, now, ema).tolist()

    def arrived(self, client: str, came: Sequence[bool]) -> None:
        """Remember which modules a client sent."""
        before = self.sent.get(client, [False] * len(came))
        self.sent[client] = [old or new for old, new in zip(before, came, strict=True)]

    def routes(self, cohort: Cohort, opened: Mapping[str, Sequence[bool]]) -> Routes:
        """The masks of a cohort, for those who mix it."""
        nothing = [False] * len(cohort.layout.modules)
        return Routes(
            torch.tensor([list(opened.get(client, nothing)) for client in cohort.clients]),
            torch.tensor([self.sent.get(client, nothing) for client in cohort.clients]),
        )


def module_sizes(cohort: Cohort, client: str) -> list[int]:
    """Bytes of each module of a client's adapter."""
    layout, member = cohort.layout, cohort.members[cohort.places[client]]
    shapes = adapter_shapes(layout, member)
    each = [[shapes[name] for name in layout.parts(i)] for i in range(len(layout.modules))]
    size = next(iter(cohort.tensors.values())).element_size()
    return [sum(size * torch.Size(shape).numel() for shape in both) for both in each]


@dataclass(frozen=True)
class Routes:
    """What travels in a round, by client of a cohort and module.

    Attributes:
        open: For whom a module is open, bool [n, modules].
        known: Who has ever sent a module, bool [n, modules].
    """

    open: Tensor
    known: Tensor

    def select(self, rows: Tensor) -> Routes:
        """The masks of some clients."""
        return Routes(self.open[rows], self.known[rows])
