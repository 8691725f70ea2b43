"""The server: what stays the same over a run, what it remembers, and how it sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from atlas.config.plan import (
    ClusterSettings,
    FingerprintSettings,
    MixingSettings,
    RankSettings,
    RelationSettings,
    RelevanceSettings,
    RouteSettings,
    SplitSettings,
    WireSettings,
)
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.capacity.grant import Site
from atlas.federation.exchange.guard import Expected, Refusal, check_reply
from atlas.federation.exchange.message import Message, printable
from atlas.federation.exchange.transport import (
    CONTRACTS,
    Direction,
    Failure,
    Reply,
    TaskName,
    Transport,
)
from atlas.federation.fingerprints.planned import CohortPlan
from atlas.federation.routing.masks import RouteState
from atlas.federation.state.references import References
from atlas.federation.strategies.base import Looks, Strategy
from atlas.ops.graph.shrink import Deviation
from atlas.runs.events import Observe

DIRECTIONS: tuple[Direction, ...] = ("up", "down")


@dataclass
class Ledger:
    """Bytes per client and direction, counted on the messages themselves.

    `split` is the part of all of them that split steps sent.
    """

    totals: dict[str, dict[Direction, int]] = field(default_factory=dict)
    split: dict[Direction, int] = field(default_factory=lambda: {"up": 0, "down": 0})

    def count(self, messages: Mapping[str, Reply], direction: Direction) -> int:
        """Add the sizes of messages; returns their sum."""
        added = 0
        for client, message in messages.items():
            size = len(message) if isinstance(message, bytes) else 0
            entry = self.totals.setdefault(client, {"up": 0, "down": 0})
            entry[direction] += size
            added += size
        return added

    def count_split(self, client: str, sizes: Mapping[Direction, int]) -> None:
        """Add what the split steps of a client's round sent, as its engine counted it."""
        entry = self.totals.setdefault(client, {"up": 0, "down": 0})
        for direction, size in sizes.items():
            entry[direction] += size
            self.split[direction] += size

    def total(self, direction: Direction) -> int:
        """All bytes in one direction."""
        return sum(entry[direction] for entry in self.totals.values())


@dataclass
class ServerState:
    """What the server remembers between rounds; all of it goes into the checkpoint.

    Attributes:
        cohorts: The last good adapter each client sent (at first the initial one), by backbone;
            with feedback what it holds after its last mixture.
        residuals: With feedback, what the cut to its rank removed from each client's mixture, by
            backbone.
        round: The last round done.
        examples: Training examples of every client that ever replied.
        planned: What was found out before the first round, by backbone; kept beside the rounds.
        granted: What was granted to each client before the first round; empty for fixed ranks.
        routes: What is known of every client's modules, where some of them do not travel.
        signatures: What each client last told of itself, averaged over rounds [d], float64.
        deviations: How far clients are from their neighbours, where steps are estimated.
        steps: What was last told of each client's step, there.
        references: What clients' replies are changes of, where they are compressed.
        ledger: Bytes so far.
        refused: Replies that were not used: mostly, because the guard did not let them in.
        failures: Clients that did not do what they were asked.
    """

    cohorts: dict[str, Cohort]
    residuals: dict[str, Cohort] = field(default_factory=dict)
    round: int = 0
    examples: dict[str, int] = field(default_factory=dict)
    planned: dict[str, CohortPlan] = field(default_factory=dict)
    granted: dict[str, dict[str, object]] = field(default_factory=dict)
    routes: RouteState = field(default_factory=RouteState)
    signatures: dict[str, Tensor] = field(default_factory=dict)
    deviations: dict[str, Deviation] = field(default_factory=dict)
    steps: dict[str, dict[str, float] | None] = field(default_factory=dict)
    references: References = field(default_factory=References)
    ledger: Ledger = field(default_factory=Ledger)
    refused: list[dict[str, object]] = field(default_factory=list)
    failures: list[dict[str, object]] = field(default_factory=list)

    def cohorts_of(self, client: str) -> list[Cohort]:
        """The cohorts a client belongs to: one, unless cores and plain adapters are mixed apart."""
        return [cohort for cohort in self.cohorts.values() if client in cohort.places]

    @property
    def clients(self) -> list[str]:
        """Everybody, sorted."""
        return sorted({client for cohort in self.cohorts.values() for client in cohort.clients})

    def planned_for(self, cohort: Cohort) -> CohortPlan:
        """What was found out of a cohort's clients; nothing of clients that are no cohort."""
        names = (name for name, own in self.cohorts.items() if own.clients == cohort.clients)
        return self.planned.get(next(names, ""), CohortPlan({}))


@dataclass
class Server:
    """Sends and receives for one round: counts bytes, checks replies, logs what is not used.

    Attributes:
        state: What is remembered over rounds.
        transport: Where clients are.
        observe: Receives events.
        round: Which round it is.
        uncounted: Where bytes are counted that are no part of the method, such as those of the
            test; None: with all others.
        traffic: Bytes of this round.
        trained: Whose adapter of this round arrived and is used.
        refused: Whose adapter was not used in this round.
        unheard: Who did not say in this round what became of the mixtures it was sent.
    """

    state: ServerState
    transport: Transport
    observe: Observe
    round: int
    uncounted: Ledger | None = None
    traffic: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    trained: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unheard: set[str] = field(default_factory=set)

    @property
    def ledger(self) -> Ledger:
        """Where bytes are counted."""
        return self.state.ledger if self.uncounted is None else self.uncounted

    def ask(
        self,
        task: TaskName,
        payloads: Mapping[str, bytes],
        expected: Callable[[str], Expected] | None = None,
    ) -> dict[str, Message]:
        """The replies that are as they should be; all others are written down, with the reason.

        Args:
            task: What clients are asked to do.
            payloads: What each of them is told.
            expected: What a client's reply must look like; None: facts alone.
        """
        if not payloads:
            return {}
        self.traffic["down"] += self.ledger.count(payloads, "down")
        found: dict[str, Reply] = self.transport.ask(task, payloads)
        replies = {client: reply for client, reply in found.items() if client in payloads}
        self.traffic["up"] += self.ledger.count(replies, "up")
        answered = {}
        for client in sorted(payloads):
            reply = replies.get(client, Failure("no reply"))
            if not isinstance(reply, bytes):
                reason = reply.reason if isinstance(reply, Failure) else "no bytes came back"
                self.fail(client, f"{task}: {reason}")
                continue
            wanted = expected(client) if expected else Expected()
            message = check_reply(reply, CONTRACTS[task].reply, wanted)
            if isinstance(message, Refusal):
                self._turn_down(task, client, message.reason)
            else:
                answered[client] = message
        return answered

    def facts(
        self,
        task: TaskName,
        payloads: Mapping[str, bytes],
        expected: Callable[[str], Expected] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """The facts of replies that are as they should be; see `ask`."""
        return {c: message.facts for c, message in self.ask(task, payloads, expected).items()}

    def _turn_down(self, task: TaskName, client: str, reason: str) -> None:
        """Write down a reply that is not as it should be."""
        if task == "fit":
            self.refuse(client, reason)
        elif task in ("fingerprint", "signature"):
            self.pass_over(client, f"{task}: {reason}")
        else:
            self.fail(client, f"{task}: {reason}")

    def count_split(self, client: str, facts: Mapping[str, Any]) -> dict[str, object]:
        """Count what a client's split steps sent this round; returns it for the events."""
        sizes = {way: facts[f"split_{way}"] for way in DIRECTIONS if f"split_{way}" in facts}
        if not sizes:
            return {}
        self.ledger.count_split(client, sizes)
        for way, size in sizes.items():
            self.traffic[way] += size
        return {"split": sizes}

    def fail(self, client: str, reason: str) -> None:
        """Record a client that did not do what it was asked."""
        entry = {"round": self.round, "client": client, "reason": printable(reason)}
        self.state.failures.append(entry)
        self.observe("failure", entry)

    def refuse(self, client: str, reason: str) -> None:
        """Record an adapter that is not used; its client is given back the last good one."""
        self.refused.add(client)
        self.pass_over(client, reason)

    def pass_over(self, client: str, reason: str) -> None:
        """Record a reply that is not used."""
        entry = {"round": self.round, "client": client, "reason": printable(reason)}
        self.state.refused.append(entry)
        self.observe("refused", entry)


@dataclass(frozen=True)
class RunPlan:
    """The fixed choices of a run.

    Attributes:
        strategy: The server's rule.
        tasks: Task name of every client.
        rounds: How many rounds to run.
        seed: Run seed.
        sample: Share of clients asked in each round.
        absent: `restrict` mixes those who replied; `last` also uses what others last sent.
        validate_every: Rounds between validations; zero for never.
        shadows: Whether every client is also trained alone, to be compared with.
        fingerprint: What clients tell of their data, where the strategy asks.
        clusters: How clients are grouped, where the strategy needs groups.
        relation: How affinities become W.
        mixing: How mixtures are brought to clients' ranks.
        relevance: What signatures are and how they become W, where the strategy asks for them.
        print_shapes: Name and shape of every tensor of a client's fingerprint.
        route: Which modules travel.
        ranks: How ranks are granted.
        split: Where clients' blocks are divided.
        wire: How what clients send is compressed.
        sites: Where clients train, if ranks are to be granted; empty if they are fixed.
    """

    strategy: Strategy
    tasks: Mapping[str, str]
    rounds: int
    seed: int
    sample: float = 1.0
    absent: str = "restrict"
    validate_every: int = 1
    shadows: bool = False
    fingerprint: FingerprintSettings = FingerprintSettings()
    clusters: ClusterSettings = ClusterSettings()
    relation: RelationSettings = RelationSettings()
    mixing: MixingSettings = MixingSettings()
    relevance: RelevanceSettings = RelevanceSettings()
    print_shapes: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    route: RouteSettings = RouteSettings()
    ranks: RankSettings = RankSettings()
    split: SplitSettings = SplitSettings()
    wire: WireSettings = WireSettings()
    sites: Mapping[str, Site] = field(default_factory=dict)

    @property
    def budget(self) -> float:
        """Share of an adapter's bytes that travels each way in a round."""
        return self.route.budget or self.strategy.budget

    @property
    def looks(self) -> Looks:
        """What is found out before the first round, for the strategy or for the ranks."""
        if self.sites and self.ranks.method in ("importance", "exhaustive"):
            return "clusters"
        return self.strategy.plans
