"""Steps that are estimated: who keeps how much of its own, by noise against real differences.

W is that of `relation.eta=even`; a client that should keep the share s of its deviation then takes
1 - s of it. What the numbers mean is in `ops.graph.shrink`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
import torch
from torch import Tensor

from atlas.federation.adapters.adapter import heads_of
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.exchange.message import Message
from atlas.federation.fingerprints.planned import LARGEST_LOGGED
from atlas.federation.mixing.apply import Weights, relate
from atlas.federation.mixing.deliver import Taken
from atlas.federation.mixing.distance import squared_deviations
from atlas.federation.server import RunPlan, Server
from atlas.federation.strategies.base import View
from atlas.ops.graph import sparse_rows as sparse
from atlas.ops.graph.affinity import lazy
from atlas.ops.graph.shrink import Deviation, Neighbour, RoundNoise, compared, trained
from atlas.ops.graph.sparse_rows import Edges, SharedRows

MOST_COMPARED = 16
"""Neighbours that a client is compared with, those that count most."""


def shrink_steps(  # noqa: PLR0913
    plan: RunPlan,
    server: Server,
    view: View,
    cohort: Cohort,
    weights: list[Weights],
    accepted: Mapping[str, Message],
) -> list[Weights]:
    """W with every client's own step, where `relation.eta` is `shrink`; else as it was given.

    Clients of which nothing is known keep nothing of their deviation, as with `even`.

    Args:
        plan: The run's fixed choices.
        server: Remembers deviations, and tells what was found.
        view: What W was made from.
        cohort: The adapters as trained.
        weights: Each W of the round, with even steps.
        accepted: What clients replied to `fit`.
    """
    if plan.relation.eta != "shrink":
        return weights
    replied = {client for client in cohort.clients if client in accepted}
    graph = weights[0]
    if view.round <= plan.relation.warmup:
        # Nobody learns from anybody yet, but how far neighbours part is seen from the first round.
        now = plan.relation.model_copy(update={"warmup": 0})
        graph = relate(replace(plan, relation=now), view, replied)[0]
    noises = {c: n for c in replied if (n := read_noise(accepted[c])) is not None}
    near = near_of(cohort, graph, noises)
    known = server.state.deviations
    found = learn(known, cohort, near, noises)
    known |= found
    # Whoever is not compared in this round, or is away, keeps the share last known. What the server
    # mixes of a client that is away is what it last sent, as far off as training took it: the same
    # share puts it where it was, beside neighbours that have moved on. No step at all would leave
    # it behind them, and a client that should keep next to nothing as far as one that differs.
    shares = {client: known[client].share for client in cohort.clients if client in known}
    known |= {
        client: replace(known[client], kept=shares[client]) for client in replied & set(shares)
    }
    own = [shares.get(client, 0.0) for client in cohort.clients]
    steps = 1.0 - torch.tensor(own, dtype=torch.float64)
    stepped = [taken_by(w, steps) for w in weights]
    estimates = describe(cohort, known, stepped[0])
    server.state.steps |= estimates
    if len(cohort.clients) <= LARGEST_LOGGED:
        told = {"round": server.round, "cohort": cohort.layout.backbone}
        server.observe("shrunk", {**told, "clients": estimates})
    return stepped


@dataclass(frozen=True)
class PartNoise:
    """What a client tells of its round's noise: of adapter and head, and passes over its data."""

    adapter: float
    head: float
    passes: float


def read_noise(message: Message) -> PartNoise | None:
    """What a reply says of noise, which the guard has checked; None if it says nothing."""
    told = message.facts.get("noise")
    if told is None:
        return None
    return PartNoise(told["adapter"], told["head"], message.facts["passes"])


def near_of(
    cohort: Cohort, graph: Weights, known: Mapping[str, object]
) -> dict[str, list[tuple[str, float]]]:
    """By client in `known` the others in it that it learns from, with shares that sum to one."""
    clients = cohort.clients
    overall = None
    if isinstance(graph, Tensor):
        overall = (graph.mean(0) if graph.dim() == 3 else graph).cpu().numpy()
    found = {}
    for client in sorted(known, key=cohort.places.__getitem__):
        k = cohort.places[client]
        if overall is not None:
            columns = np.nonzero(overall[k])[0]
            values = overall[k][columns]
        else:
            assert isinstance(graph, SharedRows)
            row = slice(*graph.rows.indptr[graph.which[k] : graph.which[k] + 2])
            columns, values = graph.rows.indices[row], graph.rows.data[row]
        pairs = [
            (clients[j], float(value))
            for j, value in zip(columns.tolist(), values.tolist(), strict=True)
            if j != k and clients[j] in known
        ]
        pairs = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:MOST_COMPARED]
        total = sum(value for _, value in pairs)
        found[client] = [(other, value / total) for other, value in pairs]
    return found


def learn(
    before: Mapping[str, Deviation],
    cohort: Cohort,
    near: Mapping[str, Sequence[tuple[str, float]]],
    noises: Mapping[str, PartNoise],
) -> dict[str, Deviation]:
    """What is known after a round: the noise of all, the spread of those with neighbours."""
    members = {member.id: member for member in cohort.members}
    heads = bool(heads_of(cohort.tensors))
    rounds, moved = {}, {}
    for client, noise in noises.items():
        labels = members[client].label_set
        shared = sum(p for other, p in near[client] if members[other].label_set == labels)
        variance = noise.adapter + (noise.head * shared if heads else 0.0)
        rounds[client] = RoundNoise(variance, noise.passes)
        moved[client] = trained(before.get(client, Deviation()), rounds[client])
    squares = squared_deviations(cohort, near)
    return {
        client: compared(
            moved[client],
            rounds[client],
            [Neighbour(p, moved[other]) for other, p in near[client]],
            squares[client],
        )
        if near[client]
        else moved[client]
        for client in noises
    }


def taken_by(weights: Weights, steps: Tensor) -> Weights:
    """W of clients that take `steps` [n] of their rows and keep the rest of their own."""
    if isinstance(weights, SharedRows):
        return sparse.share_rows(sparse.lazy(weights.rows[weights.which], steps.numpy()))
    if weights.dim() == 3:
        return torch.stack([lazy(one, steps) for one in weights])
    return lazy(weights, steps)


def describe(
    cohort: Cohort, known: Mapping[str, Deviation], weights: Weights
) -> dict[str, dict[str, float] | None]:
    """What the event tells of every client; None where there was never anything to go by."""
    own = own_shares(weights).tolist()
    told: dict[str, dict[str, float] | None] = {}
    for client, kept in zip(cohort.clients, own, strict=True):
        one = known.get(client)
        told[client] = None
        if one is not None and one.seen:
            square = one.spread**2
            told[client] = {
                "noise": square * one.noisy,
                "difference": square * one.real,
                "rho": one.rho,
                "keep": one.c,
                "eta": 1.0 - kept,
            }
    return told


def own_shares(weights: Weights) -> Tensor:
    """What one's own counts in every row [n]."""
    if isinstance(weights, SharedRows):
        rows: Edges = scipy.sparse.csr_array(weights.rows[weights.which])
        return torch.from_numpy(rows.diagonal())
    return (weights.mean(0) if weights.dim() == 3 else weights).diagonal()


def remember_kept(
    known: dict[str, Deviation],
    clients: Sequence[str],
    replied: Container[str],
    taken: Mapping[str, Taken],
    *,
    held: bool,
) -> None:
    """Note how much of its deviation each client starts the next round with.

    Whoever was trained and took a part a of its mixture keeps 1 - a (1 - s). One that was absent
    had less than all: it keeps 1 - a of that, and a of what its mixture holds, the share s of what
    it last sent.

    Args:
        known: What is remembered of clients, with the share s; changed in place.
        clients: Those of a cohort.
        replied: Who was trained in this round.
        taken: What clients made of their mixtures.
        held: Whether of absent clients what they hold is mixed, as with feedback, and not what
            they last sent.
    """
    for client in clients:
        if client not in known:
            continue
        one = known[client]
        accept = taken[client].accept if client in taken else 0.0
        if client in replied:
            known[client] = replace(one, kept=1.0 - accept * (1.0 - one.kept))
        elif accept > 0:
            left = one.share * (one.kept if held else 1.0)
            known[client] = replace(one, kept=(1.0 - accept) * one.kept + accept * left)
