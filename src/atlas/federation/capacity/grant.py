"""Who gets which ranks: every client's memory, shared out over its layers.

`grant` trusts the cost model; `lower` trusts a trial step that took more than the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atlas.config.plan import MAKE_ROOM, MB, DeviceSettings, RankSettings
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Layout, Member
from atlas.federation.capacity.block_bytes import LargestBatch, StepMeter
from atlas.federation.capacity.cost import Need, client_need
from atlas.ops.capacity import SOLVERS

MOST_LOWERINGS = 4
"""Times that ranks are lowered before the smallest are tried."""


@dataclass(frozen=True)
class Site:
    """Where one client trains: on which device, and with what of the model.

    Attributes:
        device: Its name; empty where the budget comes from the settings.
        limits: What the device leaves for training.
        meter: Measures the client's model.
        member: The client's labels.
        batch: Most texts in a local step.
    """

    device: str
    limits: DeviceSettings
    meter: StepMeter
    member: Member
    batch: int

    @property
    def layout(self) -> Layout:
        """Which modules are adapted."""
        return self.meter.model.layout

    @property
    def first_block(self) -> int:
        """The first block with an adapter."""
        return self.meter.model.first_block

    @property
    def depth(self) -> int:
        """Blocks of the backbone."""
        return self.meter.model.backbone.depth

    def odd_texts(self, told: Mapping[str, Any]) -> str:
        """What a client told of its texts that no batch of them can be; empty if nothing."""
        lengths, answers = told["lengths"], told["answers"]
        most = self.meter.model.backbone.max_positions
        if len(lengths) > self.batch:
            return f"lengths: of {len(lengths)} texts, but a batch has {self.batch} at most"
        if max(lengths) > most:
            return f"lengths: {max(lengths)} tokens, but texts are cut to {most}"
        if answers and len(answers) != len(lengths):
            return f"answers: {len(answers)} of {len(lengths)} texts"
        if max(answers, default=0) > max(lengths):
            return f"answers: {max(answers)} tokens in texts of {max(lengths)} at most"
        return ""

    def need(self, texts: LargestBatch, blocks: int | None = None) -> Need:
        """What a step on its longest texts takes, where only so many blocks run here."""
        return client_need(self.meter, self.member, texts, blocks)


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
        measured: Bytes of a trial step with these ranks; None if there was none.
        lowered: How often a trial step took too much, and less was granted: ranks, then blocks.
    """

    device: str
    ranks: tuple[int, ...]
    budget: int
    need: Need
    complexity: float
    importance: tuple[float, ...]
    point: int | None = None
    measured: int | None = None
    lowered: int = 0

    @property
    def used(self) -> int:
        """Bytes by the cost model."""
        return self.need.total(self.ranks)

    @property
    def valid(self) -> bool:
        """Whether it fits: as measured, or by the cost model where nothing was measured."""
        return (self.used if self.measured is None else self.measured) <= self.budget

    def describe(self) -> dict[str, object]:
        """As plain values."""
        return {
            "device": self.device,
            "ranks": list(self.ranks),
            "budget": self.budget,
            "used": self.used,
            "measured": self.measured,
            "valid": self.valid,
            "lowered": self.lowered,
            "weights": self.need.weights,
            "activations": self.need.fixed - self.need.weights,
            "complexity": self.complexity,
            "importance": list(self.importance),
            "point": self.point,
        }


def grant(  # noqa: PLR0913
    client: str,
    site: Site,
    need: Need,
    settings: RankSettings,
    importance: Sequence[float],
    complexity: float,
    budget: int | None = None,
) -> Grant:
    """Ranks for one client, within its budget unless another one is given.

    The cluster's complexity decides over a share of the memory that adapters may use, never over
    the floor: a device that can hold the smallest ranks gets them. Modules that a server trains
    take nothing of it and get the largest rank.

    Raises:
        InputError: If the device cannot hold the smallest ranks.
    """
    budget = budget_of(site, need, settings) if budget is None else budget
    least = least_ranks(site, settings)
    if need.total(least) > budget:
        whose = told_budget(site, settings)
        raise InputError(_too_small(f"client {client}{whose}", need, need.total(least), budget))
    found = Grant(site.device, tuple(least), budget, need, complexity, tuple(importance))
    if settings.method == "fixed":
        return found
    return replace(found, ranks=_ranks_within(client, site, settings, found, budget))


def lower(client: str, site: Site, settings: RankSettings, found: Grant) -> Grant | None:
    """Other ranks for a client whose trial step took too much; None if there are no smaller ones.

    What the cost model left out is taken for the same under other ranks: ranks are granted again
    with so much less memory. They cost less every time, and after a few times are the smallest.
    """
    assert found.measured is not None
    least = tuple(least_ranks(site, settings))
    if settings.method == "fixed" or found.ranks == least:
        return None
    ranks = least
    if found.lowered < MOST_LOWERINGS:
        missed = found.measured - found.used
        limit = min(found.budget - max(0, missed), found.used - 1)
        if found.need.total(least) <= limit:
            ranks = _ranks_within(client, site, settings, found, limit)
    return replace(found, ranks=ranks, measured=None, lowered=found.lowered + 1)


def _ranks_within(
    client: str, site: Site, settings: RankSettings, found: Grant, limit: int
) -> tuple[int, ...]:
    """The best ranks that take at most `limit` bytes at any moment."""
    need, method = found.need, settings.method
    choices, least = allowed_ranks(client, site, settings), least_ranks(site, settings)
    earned = 1 - settings.complexity + settings.complexity * found.complexity
    share = need.fixed + (found.budget - need.fixed) * earned
    within = max(need.total(least), min(limit, share))
    plans = [
        _solve(method, moment.units, found.importance, within - moment.fixed, choices)
        for moment in need.moments
    ]
    # The best plan of one moment that meets the others is the best of all.
    meeting = [plan for plan in plans if need.total(plan) <= within]
    return meeting[0] if meeting else tuple(map(min, zip(*plans, strict=True)))


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
    least, most = (need.total([rank] * len(site.layout.modules)) for rank in _ends(settings))
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


def told_budget(site: Site, settings: RankSettings) -> str:
    """What set a client's budget, in brackets; empty where nothing has a name."""
    where = site.device if settings.budget is None else f"ranks.budget={settings.budget:g}"
    return f" ({where})" if where else ""


def _too_small(who: str, need: Need, least: int, budget: int) -> str:
    parts = {
        "weights": need.weights,
        "activations and head": need.fixed - need.weights,
        "smallest ranks": least - need.fixed,
    }
    told = ", ".join(f"{name} {size / MB:.1f}" for name, size in parts.items())
    return (
        f"{who}: {budget / MB:.1f} MB for training, but it takes at least "
        f"{least / MB:.1f} MB ({told}); {MAKE_ROOM}"
    )
