"""A strategy is a frozen bundle of named pieces; a new one is one file and one line.

The file defines a `Strategy` and passes it to `register`; the line imports the file in
`strategies/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

import torch
from torch import Tensor

from atlas.config.messages import nearest
from atlas.config.plan import RelationSettings, RelevanceSettings
from atlas.errors import InputError
from atlas.federation.adapters.adapter import is_a, is_gate, is_head
from atlas.federation.adapters.cohort import Trains
from atlas.ops.graph.sparse_rows import SharedRows
from atlas.ops.lowrank.mixing import ROTATED

Looks = Literal["nothing", "fingerprints", "clusters"]
"""What is found out of the clients before the first round."""
AdapterKind = Literal["lora", "pq"]
Delivery = Literal["replace", "merge", "global"]


@dataclass(frozen=True)
class View:
    """What a relation may look at, clients in stacking order.

    Attributes:
        clients: Ids.
        examples: Training examples of each client [n], float64.
        tasks: Task name of each client.
        round: Round number, from 1.
        features: Fingerprints [n, d], unit rows, float64; a zero row where a client sent none.
        clusters: Cluster of each client.
        kin: Factors on edges between clusters that were one, by the numbers of both.
        agreement: How far every two clients want the same, 0 to 1 [n, n], if somebody measured it.
        settings: How affinities are made.
        norms: Measures how much each client's adapter changes the model: the norm of its dW [n],
            float64. Work that few relations need, so it is done when one asks.
        signatures: What clients told of themselves, averaged over rounds [n, d], float64; a zero
            row where nothing is known of a client. None if nobody told anything.
        relevance: How signatures are compared.
    """

    clients: tuple[str, ...]
    examples: Tensor
    tasks: tuple[str, ...]
    round: int
    features: Tensor | None = None
    clusters: tuple[int, ...] | None = None
    settings: RelationSettings = RelationSettings()
    norms: Callable[[], Tensor] | None = None
    signatures: Tensor | None = None
    relevance: RelevanceSettings = RelevanceSettings()
    kin: Mapping[tuple[int, int], float] = field(default_factory=dict)
    agreement: Tensor | None = None


Relation = Callable[[View], Tensor | SharedRows]
"""Who learns from whom: a row-stochastic W [n, n], or [modules, n, n]."""


@dataclass(frozen=True)
class Strategy:
    """What the server does between two rounds of local training.

    Attributes:
        name: Registry name.
        relation: Gives W.
        space: Where W acts: one of `ops.mixing.MIXERS`, `stack` (`ops.lowrank.mixing`), or `core`:
            cores of all clients are mixed, whatever their backbones.
        adapter: What clients train unless settings say otherwise: `lora`, A and B, or `pq`, cores.
        align: Whether factors are turned to a common gauge before they are mixed (`rotate`); in
            other spaces than `factors` that would change nothing.
        heads: `mix` within label sets, or `personal`: heads never leave the client.
        reach: Who receives a mixture: `all` clients, or those `present` this round.
        keep_best: Whether clients accept mixtures by their validation data.
        pool: Whether clients of one task are trained as one on all their data (the ceiling).
        plans: What is found out before the first round: fingerprints, or clusters of them too.
        signature: What clients tell of themselves after every fit: the `gradient` of their data at
            a shared probe, or their model's `representation` of shared texts.
        anchor: What local training is pulled to: `start` (the adapter of the round's start), or
            `global` (a personal adapter beside the held one is pulled to what was delivered).
        sends: Whether clients send what they trained. With `nothing`, W = I: the server has no
            adapters, and clients hand theirs over once, when the run ends.
        trains: Which factors local training moves; an A that is not trained is not sent either.
        deliver: What becomes of a mixture: it takes the adapter's place (`replace`), is added to a
            dense change that the client keeps to itself, and the adapter starts again (`merge`), or
            stands beside the adapter, untrained, and a gate of the client weighs the two
            (`global`).
        budget: Share of an adapter's bytes that travels in a round, unless settings say otherwise.
        about: What sets it apart, in a line for `atlas strategies`.
    """

    name: str
    relation: Relation
    space: Literal["product", "svd", "factors", "b", "stack", "core"] = "product"
    adapter: AdapterKind = "lora"
    align: Literal["none", "rotate"] = "none"
    heads: Literal["mix", "personal"] = "mix"
    reach: Literal["all", "present"] = "all"
    keep_best: bool = False
    pool: Literal["none", "task"] = "none"
    plans: Looks = "nothing"
    signature: Literal["none", "gradient", "representation"] = "none"
    anchor: Literal["none", "start", "global"] = "none"
    sends: Literal["adapters", "nothing"] = "adapters"
    trains: Trains = "both"
    deliver: Delivery = "replace"
    budget: float = 1.0
    about: str = ""

    @property
    def mixing(self) -> dict[str, str]:
        """Where and how W is applied: what `mix_cohort` is told beside W."""
        return {"space": self.space, "align": self.align, "heads": self.heads}

    def travels(self, name: str) -> bool:
        """Whether the tensor of that name leaves a client before the run ends."""
        if self.sends == "nothing":
            return False
        if is_head(name):
            return self.heads == "mix"
        if is_gate(name):
            return False
        return self.trains == "both" or not is_a(name)


STRATEGIES: dict[str, Strategy] = {}
_PIECES = [own.name for own in fields(Strategy) if own.name not in ("name", "relation", "about")]


def register(strategy: Strategy) -> Strategy:
    """Make a strategy known by its name; a name can be taken once.

    Raises:
        ValueError: If the name is taken, or a piece has nothing to act on.
    """
    if strategy.name in STRATEGIES:
        raise ValueError(f"strategy {strategy.name!r} is registered twice")
    if strategy.deliver == "global" and strategy.heads != "personal":
        raise ValueError(f"strategy {strategy.name!r}: heads do not stand beside each other")
    if strategy.align != "none" and strategy.space not in ROTATED:
        raise InputError(
            f"strategy {strategy.name!r}: align {strategy.align!r} in space {strategy.space!r}, "
            f"where a common rotation changes nothing; allowed: {', '.join(ROTATED)}"
        )
    STRATEGIES[strategy.name] = strategy
    return strategy


def find_strategy(name: str) -> Strategy:
    """The strategy of that name; an unknown one is refused with the nearest match."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    near = nearest(name, STRATEGIES)
    hint = f"did you mean {near}? " if near else ""
    allowed = ", ".join(sorted(STRATEGIES))
    raise InputError(f"strategy: unknown name {name!r}; {hint}allowed: {allowed}")


def list_strategies() -> list[dict[str, object]]:
    """Every strategy that is registered, as plain values, by name.

    `W` is what its relation says of itself in the first line of its documentation.
    """
    return [
        {
            "name": name,
            "about": strategy.about,
            "W": (strategy.relation.__doc__ or "").strip().partition("\n")[0].rstrip("."),
            **{piece: getattr(strategy, piece) for piece in _PIECES},
        }
        for name, strategy in sorted(STRATEGIES.items())
    ]


def identity(view: View) -> Tensor:
    """Nobody learns from anybody: W = I."""
    return torch.eye(len(view.clients), dtype=torch.float64)


def data_shares(view: View) -> Tensor:
    """Everybody holds the same mixture, weighted by training examples."""
    shares = view.examples / view.examples.sum()
    return shares.expand(len(view.clients), -1).clone()
