"""Mixtures on their way back: each client is sent its rows, and says what it made of them.

Told with it is how far apart the clients of a cluster are: what mixing is there to reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import cast

import torch
from torch import Tensor

from atlas.federation.adapters.adapter import (
    Adapter,
    Layout,
    adapter_sha256,
    adapter_shapes,
    factor_names,
)
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.exchange.message import Message, MessageError, encode
from atlas.federation.fingerprints.planned import LARGEST_LOGGED
from atlas.federation.mixing.apply import (
    Weights,
    describe_error,
    describe_gauge,
    keeps_own,
    routed,
)
from atlas.federation.mixing.cutting import Cutting
from atlas.federation.mixing.distance import squared_gaps
from atlas.federation.mixing.energy import describe_energy
from atlas.federation.routing.masks import Routes
from atlas.federation.server import Server
from atlas.federation.strategies.base import Strategy

FORGOTTEN = "; what its rank cut off is forgotten"
"""Said of a client where feedback is kept and its residual no longer is."""


def cluster_distance(cohort: Cohort, clusters: Sequence[int] | None) -> float | None:
    """Mean distance between the delta W of two clients of one cluster, all modules together.

    Args:
        cohort: Adapters.
        clusters: Cluster of each client; None: all are in one.

    Returns:
        The distance, or None if every client is alone.
    """
    labels = [0] * len(cohort.clients) if clusters is None else list(clusters)
    pairs = [(i, j) for i, j in combinations(range(len(labels)), 2) if labels[i] == labels[j]]
    if not pairs:
        return None
    one, two = torch.tensor(pairs).T
    return float(squared_gaps(cohort, one, two).sqrt().mean())


@dataclass(frozen=True)
class Taken:
    """What a client took: which of the mixtures offered, and how much of it.

    Attributes:
        pick: Which.
        accept: How much, from 0 to 1.
        names: The tensors that were sent; none where there was nothing to take.
        sha256: What the client says the hash of these is afterwards.
    """

    pick: int
    accept: float
    names: frozenset[str] = field(default=frozenset(), compare=False)
    sha256: object = field(default=None, compare=False)


def pack_mixtures(mixtures: Sequence[Adapter], facts: Mapping[str, object]) -> bytes:
    """The mixtures offered to one client as one message."""
    tensors = {f"{i}|{name}": value for i, m in enumerate(mixtures) for name, value in m.items()}
    return encode(tensors, {**facts, "offers": len(mixtures)})


def unpack_mixtures(message: Message) -> list[Adapter]:
    """The mixtures in a message of `pack_mixtures`.

    Raises:
        MessageError: If a tensor belongs to no mixture, or a mixture has no tensors.
    """
    offers, tensors = message.facts.get("offers"), message.tensors
    # type and not isinstance: True is a whole number there.
    if type(offers) is not int or not 0 <= offers <= len(tensors):
        raise MessageError(f"{offers!r} mixtures in {len(tensors)} tensors")
    mixtures: list[Adapter] = [Adapter() for _ in range(offers)]
    for key, value in tensors.items():
        number, _, name = key.partition("|")
        if not number.isdecimal() or int(number) >= offers or not name:
            raise MessageError(f"tensor {key!r} belongs to none of {offers} mixtures")
        mixtures[int(number)][name] = value
    if not all(mixtures):
        raise MessageError(f"one of {offers} mixtures has no tensors")
    return mixtures


def check_offers(
    cohort: Cohort,
    offers: Mapping[str, Sequence[Adapter]],
    delivery: str,
    travels: Callable[[str], bool],
) -> None:
    """Refuse, at the clients' side, mixtures that they cannot take.

    Args:
        cohort: What the clients hold.
        offers: Their mixtures by client.
        delivery: What becomes of a mixture; see `Strategy.deliver`.
        travels: Whether the tensor of a name is ever sent.

    Raises:
        ValueError: If one is not of the client's names, shapes and dtype. A mixture to merge may
            be of any rank; one to merge or to stand beside an adapter must be the only one.
    """
    dtype = next(iter(cohort.tensors.values())).dtype
    for client, mixtures in offers.items():
        if delivery != "replace" and len(mixtures) > 1:
            raise ValueError(f"{client} was offered {len(mixtures)} mixtures at once")
        for mixture in mixtures:
            member = cohort.members[cohort.places[client]]
            if delivery == "merge":
                member = replace(member, ranks=_ranks_of(mixture, cohort.layout.modules))
            shapes = adapter_shapes(cohort.layout, member)
            shut = _left_out(cohort.layout, mixture) if delivery != "merge" else set()
            wanted = {
                name: (shape, dtype)
                for name, shape in shapes.items()
                if travels(name) and name not in shut
            }
            if wanted != {name: (tuple(v.shape), v.dtype) for name, v in mixture.items()}:
                raise ValueError(f"a mixture offered to {client} is not of its names and sizes")


def _left_out(layout: Layout, mixture: Adapter) -> set[str]:
    """The tensors of modules of which a mixture has nothing: those that are shut."""
    here = [any(name in mixture for name in layout.parts(i)) for i in range(len(layout.modules))]
    return shut_names(layout, here)


def _ranks_of(mixture: Adapter, modules: Sequence[str]) -> tuple[int, ...]:
    factors = (mixture.get(factor_names(module)[0]) for module in modules)
    return tuple(0 if a is None or not a.dim() else a.shape[0] for a in factors)


def keepers(clients: Sequence[str], weights: Sequence[Weights], rule: Strategy) -> set[str]:
    """The clients whose row is e_k in every W: for them nothing changes."""
    own = torch.stack([keeps_own(w) for w in weights]).all(0)
    if rule.deliver == "merge" and not bool(own.all()):
        # What others have merged must not come back in its owner's next reply: all start again.
        return set()
    return {client for client, keeps in zip(clients, own.tolist(), strict=True) if keeps}


def deliver(
    server: Server,
    mixed: Sequence[Cohort],
    own: Container[str],
    rule: Strategy,
    news: Mapping[str, Sequence[bool]] | None = None,
) -> dict[str, Taken]:
    """Send the clients of `mixed` their mixtures; returns what each took.

    Those in `own` hold the result already. They are sent no tensors, unless their reply was
    refused: then they get back the last good adapter the server has of them, where it would take
    the place of what they hold and the server has any.

    Args:
        server: Sends and receives.
        mixed: Mixtures, one cohort for each W that is offered.
        own: Whom no W gives anything.
        rule: What travels, and what becomes of it.
        news: By client the modules that are sent; None for all of them.
    """
    payloads, sent, names, offers = {}, {}, {}, {}
    kept: dict[str, tuple[Adapter, float]] = {}
    again = server.refused if rule.deliver != "global" else set()
    for client in mixed[0].clients:
        given = rule.sends == "adapters" and (client not in own or client in again)
        shut = shut_names(mixed[0].layout, news[client] if news else None)
        goes = partial(_goes, rule, shut)
        adapters = [c.take(client).only(goes) for c in mixed] if given else []
        adapters = adapters if all(adapters) else []  # nothing is open that anybody sent
        payloads[client] = pack_mixtures(adapters, {"round": server.round})
        sent[client] = [adapter_sha256(adapter) for adapter in adapters]
        names[client] = frozenset(adapters[0]) if adapters else frozenset()
        offers[client] = adapters if server.state.references.cohorts else []
    taken = {}
    then = FORGOTTEN if server.state.residuals else ""
    for client, facts in server.facts("deliver", payloads).items():
        if facts["pick"] >= max(1, len(sent[client])):
            of = f"{facts['pick']} of {len(sent[client])} offers"
            server.fail(client, f"deliver: pick: {of}{then}")
            server.unheard.add(client)
            continue
        pick, accept = facts["pick"], float(facts["accept"])
        taken[client] = Taken(pick, accept, names[client], facts["sha256"])
        whole = sent[client] and taken[client].accept == 1.0
        if whole and facts["sha256"] != sent[client][taken[client].pick]:
            server.fail(client, f"deliver: the client does not hold what was sent{then}")
        answer = {"accept": taken[client].accept, "pick": taken[client].pick}
        entry = {"round": server.round, "client": client, **answer, "sha256": facts["sha256"]}
        server.observe("delivered", entry)
        if offers[client]:
            kept[client] = offers[client][taken[client].pick], taken[client].accept
    server.unheard |= {client for client in sent if sent[client]} - set(taken)
    server.state.references.delivered(kept, rule.deliver)
    return taken


def _goes(rule: Strategy, shut: Container[str], name: str) -> bool:
    return rule.travels(name) and name not in shut


def shut_names(layout: Layout, opened: Sequence[bool] | None) -> set[str]:
    """The tensors that do not travel; None opens everything."""
    if opened is None:
        return set()
    return {name for i, is_open in enumerate(opened) if not is_open for name in layout.parts(i)}


def news_of(mixing: Mixing) -> dict[str, list[bool]]:
    """By client, which modules are open and hold anything of somebody else."""
    assert mixing.routes is not None
    modules = range(len(mixing.trained.layout.modules))
    own = [
        torch.stack([keeps_own(routed(w, mixing.routes, i)) for w in mixing.weights]).all(0)
        for i in modules
    ]
    return dict(zip(mixing.trained.clients, (~torch.stack(own, 1)).tolist(), strict=True))


@dataclass(frozen=True)
class Mixing:
    """One cohort's mixing: adapters as trained, each W offered, and what W made of them."""

    trained: Cohort
    weights: Sequence[Weights]
    mixed: Sequence[Cohort]
    clusters: Sequence[int] | None
    routes: Routes | None = None
    cutting: Cutting | None = None

    def per_module(self) -> list[Tensor]:
        """Each W that is a matrix, as it acts: [n, n], or where some is shut [modules, n, n]."""
        dense = [w for w in self.weights if isinstance(w, Tensor)]
        if self.routes is None:
            return dense
        modules = range(len(self.trained.layout.modules))
        return [
            torch.stack([cast(Tensor, routed(w, self.routes, i)) for i in modules]) for w in dense
        ]


def describe_mixing(
    mixing: Mixing, taken: Mapping[str, Taken], rule: Strategy
) -> dict[str, object]:
    """W as it acted, how exact the first mixture is, and how much nearer it brought clusters.

    Where factors were aligned, also how far they were from a common gauge, before and after.
    A client that took a share s of its row has (1-s) e_k + s W_k. Where nothing is sent, the server
    knows no adapters, and so neither errors nor distances.
    """
    clients = mixing.trained.clients
    entry: dict[str, object] = {"cohort": mixing.trained.layout.backbone}
    offered = mixing.per_module()
    if offered and len(clients) <= LARGEST_LOGGED:
        effective = effective_weights(clients, offered, taken)
        effective = effective.mean(0) if effective.dim() == 3 else effective
        entry |= {"clients": list(clients), "weights": effective.tolist()}
        if rule.sends == "adapters":
            both, first = (mixing.trained, mixing.mixed[0]), offered[0]
            entry["error"] = describe_error(*both, first, mixing.cutting)
            if (energy := describe_energy(*both)) is not None:
                entry["energy"] = energy
            entry["distance"] = {
                "trained": cluster_distance(mixing.trained, mixing.clusters),
                "mixed": cluster_distance(mixing.mixed[0], mixing.clusters),
            }
        if rule.align != "none":
            entry["gauge"] = describe_gauge(mixing.trained, offered[0])
    return entry


def effective_weights(
    clients: Sequence[str], weights: Sequence[Tensor], taken: Mapping[str, Taken]
) -> Tensor:
    """W after every client has taken its share of the mixture it picked."""
    answers = [taken.get(client, Taken(0, 0.0)) for client in clients]
    picked = torch.stack([weights[a.pick][..., k, :] for k, a in enumerate(answers)], dim=-2)
    share = torch.tensor([a.accept for a in answers], dtype=picked.dtype)[:, None]
    identity = torch.eye(len(clients), dtype=picked.dtype)
    return (1 - share) * identity + share * picked
