"""Who gets which ranks: every client's memory, shared out over its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atlas.config.plan import MB, DeviceSettings, RankSettings
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Layout, Member
from atlas.federation.batching.backbone import Footprint
from atlas.federation.capacity.cost import Need, Workload, client_need
from atlas.ops.capacity import SOLVERS, cost


class LargestBatch(NamedTuple):
    """The most a batch of a client's texts holds: tokens, the longest text, the longest answer."""

    tokens: int
    longest: int
    answers: int


@dataclass(frozen=True)
class Site:
    """Where one client trains: on which device, and with what of the model.

    Attributes:
        device: Its name; empty where the budget comes from the settings.
        limits: What the device leaves for training.
        footprint: What the backbone takes.
        layout: Which modules are adapted.
        member: The client's labels.
        first_block: The first block with an adapter.
        batch: Texts in a local step.
        longest: Tokens that texts are cut to.
    """

    device: str
    limits: DeviceSettings
    footprint: Footprint
    layout: Layout
    member: Member
    first_block: int
    batch: int
    longest: int = 2**31

    @property
    def depth(self) -> int:
        """Blocks of the backbone."""
        return len(self.footprint.blocks)

    def need(self, texts: LargestBatch, blocks: int | None = None) -> Need:
        """What a step on its longest texts takes, where only so many blocks run here."""
        work = Workload(self.batch, *texts, blocks or self.depth)
        return client_need(self.footprint, self.layout, self.member, self.first_block, work)


@dataclass(frozen=True)
class Grant:
    """The ranks of one client and what they take.

    Attributes:
        device: Its device.
        ranks: One per adapted module.
        budget: Bytes left for training.
        need: What the model takes, whatever the ranks.
        complexity: How hard its cluster is, in [0, 1].
        importance: Of each module.
        point: Blocks the client runs itself; None for all of them.
    """

    device: str
    ranks: tuple[int, ...]
    budget: int
    need: Need
    complexity: float
    importance: tuple[float, ...]
    point: int | None = None

    @property
    def used(self) -> int:
        """Bytes by the cost model."""
        return self.need.total(self.ranks)

    def describe(self) -> dict[str, object]:
        """As plain values."""
        return {
            "device": self.device,
            "ranks": list(self.ranks),
            "budget": self.budget,
            "used": self.used,
            "valid": self.used <= self.budget,
            "weights": self.need.weights,
            "activations": self.need.activations,
            "complexity": self.complexity,
            "importance": list(self.importance),
            "point": self.point,
        }


def grant(
    client: str,
    site: Site,
    need: Need,
    settings: RankSettings,
    importance: Sequence[float],
    complexity: float,
) -> Grant:
    """Ranks for one client.

    The cluster's complexity decides over a share of the memory that adapters may use, never over
    the floor: a device that can hold the smallest ranks gets them. Modules that a server trains
    take nothing of it and get the largest rank.

    Raises:
        InputError: If the device cannot hold the smallest ranks.
    """
    choices = allowed_ranks(client, site, settings)
    budget = budget_of(site, need, settings)
    floor = cost(need.units, least_ranks(site, settings))
    if need.fixed + floor > budget:
        raise InputError(_too_small(client, site, need, floor, budget))
    ranks = site.member.ranks
    if settings.method != "fixed":
        share = 1 - settings.complexity + settings.complexity * complexity
        room = max(floor, (budget - need.fixed) * share)
        ranks = _solve(settings.method, need.units, importance, room, choices)
    return Grant(site.device, ranks, budget, need, complexity, tuple(importance))


def _solve(
    method: str,
    units: Sequence[int],
    importance: Sequence[float],
    room: float,
    choices: Sequence[int],
) -> tuple[int, ...]:
    ranks = [choices[-1]] * len(units)
    here = [i for i, unit in enumerate(units) if unit]
    if here:
        try:
            solved = SOLVERS[method](
                [importance[i] for i in here], [units[i] for i in here], room, choices
            )
        except ValueError as error:
            raise InputError(f"ranks.method: {method}: {error}") from error
        for i, rank in zip(here, solved, strict=True):
            ranks[i] = rank
    return tuple(ranks)


def least_ranks(site: Site, settings: RankSettings) -> Sequence[int]:
    """The fewest ranks a client can be given: the smallest choice, or those that are fixed."""
    fixed = settings.method == "fixed"
    return site.member.ranks if fixed else [settings.choices[0]] * len(site.layout.modules)


def budget_of(site: Site, need: Need, settings: RankSettings) -> int:
    """Bytes a client may use: the settings' budget, or what its device leaves."""
    if settings.budget is not None:
        return int(settings.budget * MB)
    if site.limits.memory_mb is not None:
        return int(site.limits.memory_mb * MB)
    assert site.limits.room is not None
    least, most = (need.total([rank] * len(need.units)) for rank in _ends(settings))
    return least + int(site.limits.room * (most - least))


def _ends(settings: RankSettings) -> tuple[int, int]:
    return settings.choices[0], settings.choices[-1]


def allowed_ranks(client: str, site: Site, settings: RankSettings) -> list[int]:
    """The ranks a client may have, rising.

    Raises:
        InputError: If there are none.
    """
    most = min(min(widths) for widths in site.layout.widths)
    if settings.ceilings == "kept" and site.limits.largest_rank is not None:
        most = min(most, site.limits.largest_rank)
    choices = [rank for rank in settings.choices if rank <= most]
    if not choices:
        raise InputError(
            f"client {client}: no rank of ranks.choices {settings.choices} is at most {most}"
        )
    return choices


def _too_small(client: str, site: Site, need: Need, floor: float, budget: int) -> str:
    parts = {
        "weights": need.weights,
        "activations": need.activations,
        "head": need.head,
        "smallest ranks": floor,
    }
    told = ", ".join(f"{name} {size / MB:.1f}" for name, size in parts.items())
    where = f" ({site.device})" if site.device else ""
    return (
        f"client {client}{where}: {budget / MB:.1f} MB for training, but it takes at least "
        f"{(need.fixed + floor) / MB:.1f} MB ({told}); give it more, a smaller train.batch, "
        "backbone.max_length or adapter.blocks, or split.point: auto"
    )
