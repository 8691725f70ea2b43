"""What stays the same over all rounds of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atlas.config.capacity import RankSettings, SplitSettings
from atlas.config.plan import ClusterSettings, FingerprintSettings, RelationSettings
from atlas.federation.capacity.grant import Site
from atlas.federation.strategies.base import Looks, Strategy


@dataclass(frozen=True)
class Plan:
    """The fixed choices of a run.

    Attributes:
        strategy: The server's rule.
        tasks: Task name of every client.
        rounds: How many rounds to run.
        seed: Run seed.
        sample: Share of clients asked in each round.
        absent: `restrict` mixes those who replied; `last` also uses what others last sent.
        validate_every: Rounds between validations; zero for never.
        fingerprint: What clients tell of their data, where the strategy asks.
        clusters: How clients are grouped, where the strategy needs groups.
        relation: How affinities become W.
        print_shapes: Name and shape of every tensor of a client's fingerprint.
        ranks: How ranks are granted.
        split: Where clients' blocks are divided.
        sites: Where clients train, if ranks are to be granted; empty if they are fixed.
    """

    strategy: Strategy
    tasks: Mapping[str, str]
    rounds: int
    seed: int
    sample: float = 1.0
    absent: str = "restrict"
    validate_every: int = 1
    fingerprint: FingerprintSettings = FingerprintSettings()
    clusters: ClusterSettings = ClusterSettings()
    relation: RelationSettings = RelationSettings()
    print_shapes: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    ranks: RankSettings = RankSettings()
    split: SplitSettings = SplitSettings()
    sites: Mapping[str, Site] = field(default_factory=dict)

    @property
    def looks(self) -> Looks:
        """What is found out before the first round, for the strategy or for the ranks."""
        if self.sites and self.ranks.method in ("importance", "exhaustive"):
            return "clusters"
        return self.strategy.plans
