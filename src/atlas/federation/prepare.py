"""Before the first round: fingerprints are asked for and clients grouped, then ranks are granted.

Ranks follow from what each client says its texts take on its device; whoever gets others than it
was made with is sent them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from atlas.errors import InputError
from atlas.federation.adapters.adapter import is_head
from atlas.federation.adapters.cohort import Cohort, Slot, initial_cohort
from atlas.federation.capacity.block_bytes import LargestBatch
from atlas.federation.capacity.cost import Norms, complexities, importance_of, in_block
from atlas.federation.capacity.grant import Grant, grant, lower
from atlas.federation.capacity.points import fewer_blocks, split_point
from atlas.federation.exchange.guard import Expected
from atlas.federation.exchange.message import encode
from atlas.federation.exchange.transport import Failure, Transport
from atlas.federation.fingerprints.compare import Sketches
from atlas.federation.fingerprints.planned import describe_planned, plan_cohort
from atlas.federation.mixing.apply import knows_enough, view_of
from atlas.federation.server import RunPlan, Server, ServerState
from atlas.runs.events import Observe

Grants = dict[str, dict[str, object]]
"""By client: its grant as plain values, and the memory that a trial step really took."""


def grant_ranks(
    plan: RunPlan, state: ServerState, server: Server, norms: Mapping[str, Norms]
) -> Grants:
    """Grant every client its ranks and start it again with an adapter of that size.

    A client that does not answer, or with what is no answer, keeps the ranks it has.

    Args:
        plan: Where clients train and how ranks are granted.
        state: Its cohorts are made anew.
        server: Asks the clients.
        norms: Gradient norms of those who sent a fingerprint.

    Raises:
        InputError: If a device cannot hold the smallest ranks.
    """
    asked = {client: encode({}, {}) for client in sorted(plan.sites)}
    told = server.facts("capacity", asked, lambda c: Expected(odd=plan.sites[c].odd_texts))
    texts = {c: LargestBatch(tuple(f["lengths"]), tuple(f["answers"])) for c, f in told.items()}
    grants = try_grants(plan, server, grant_all(plan, state, texts, norms), texts)
    regrade(state, {client: found.ranks for client, found in grants.items()}, plan.seed)
    granted: Grants = {}
    for client, found in grants.items():
        granted[client] = found.describe()
        server.observe("granted", {"round": 0, "client": client, **granted[client]})
    return granted


def try_grants(
    plan: RunPlan,
    server: Server,
    grants: Mapping[str, Grant],
    texts: Mapping[str, LargestBatch],
) -> dict[str, Grant]:
    """The grants after trial steps: whoever's takes more than its budget gets smaller ranks.

    Those are tried again, so that in the end every step that was measured fits, or was measured
    with the smallest ranks; with split.point=auto also on the fewest blocks.
    """

    def less(client: str, found: Grant) -> Grant | None:
        site = plan.sites[client]
        lowered = lower(client, site, plan.ranks, found)
        if lowered is None and plan.split.point == "auto":
            return fewer_blocks(client, site, plan.ranks, texts[client], found)
        return lowered

    tried, waiting = dict(grants), dict(grants)
    while waiting:
        payloads = {
            client: encode({}, {"ranks": list(found.ranks), "point": found.point, "trial": True})
            for client, found in waiting.items()
        }
        replies = server.facts("assign", payloads)
        for client, found in waiting.items():
            took = replies.get(client, {}).get("bytes")
            tried[client] = replace(found, measured=took if type(took) is int else None)
        over = {client: tried[client] for client in waiting if not tried[client].valid}
        lowered = {client: less(client, found) for client, found in over.items()}
        waiting = {client: found for client, found in lowered.items() if found is not None}
    return tried


def grant_all(
    plan: RunPlan,
    state: ServerState,
    known: Mapping[str, LargestBatch],
    norms: Mapping[str, Norms],
) -> dict[str, Grant]:
    """The grants of all clients that told what their texts take."""
    hard: dict[str, float] = {}
    for planned in state.planned.values():
        hard |= complexities(planned, norms)
    found = {}
    for client, texts in sorted(known.items()):
        site = plan.sites[client]
        importance = importance_of(
            norms.get(client), site.layout.modules, site.depth, plan.ranks.depth
        )
        point = split_point(client, site, plan.ranks, plan.split, texts, importance)
        need = site.need(texts, point)
        given = grant(client, site, need, plan.ranks, importance, hard.get(client, 1.0))
        found[client] = replace(given, point=point)
    return found


def regrade(state: ServerState, ranks: Mapping[str, Sequence[int]], seed: int) -> None:
    """Give the server's cohorts other ranks; all adapters are initial ones again."""
    for name, cohort in state.cohorts.items():
        state.cohorts[name] = regraded(cohort, ranks, seed)


def regraded(cohort: Cohort, ranks: Mapping[str, Sequence[int]], seed: int) -> Cohort:
    """A cohort at its start, with other ranks for the clients named.

    Where something may stand beside the adapters, its place has their sizes, and is empty.
    """
    members = [
        replace(member, ranks=tuple(ranks[member.id])) if member.id in ranks else member
        for member in cohort.members
    ]
    some = next(iter(cohort.tensors.values()))
    start = initial_cohort(
        cohort.layout, members, seed, dtype=some.dtype, device=some.device, place=cohort.place
    )
    slot = cohort.slot and Slot(regraded(cohort.slot.cohort, ranks, seed))
    return replace(start, trains=cohort.trains, slot=slot)


def hand_out(
    state: ServerState, transport: Transport, kept: Mapping[str, Mapping[str, Any]], seed: int
) -> None:
    """Give what was granted before, as a resumed run does; nothing is tried or counted.

    Raises:
        InputError: If it does not fit a client.
    """
    regrade(state, {client: entry["ranks"] for client, entry in kept.items()}, seed)
    payloads = {
        client: encode({}, {"ranks": entry["ranks"], "point": entry.get("point"), "trial": False})
        for client, entry in kept.items()
    }
    for client, reply in sorted(transport.ask("assign", payloads).items()):
        if isinstance(reply, Failure):
            raise InputError(f"ranks of client {client} do not fit it: {reply.reason}")


MAX_NORM = 1e6
"""Folds of a part add up to layers of length one, but a single fold can be much longer."""


def make_plan(plan: RunPlan, state: ServerState, transport: Transport, observe: Observe) -> None:
    """Find out what the run needs to know of the clients, and grant their ranks."""
    server = Server(state, transport, observe, round=0)
    norms: dict[str, Norms] = {}
    if plan.looks != "nothing":
        found = ask_prints(plan, server)
        norms = {client: one.norms for client, one in found.items()}
        compare_clients(plan, state, {client: one.sketches for client, one in found.items()})
        for entry in describe_plan(plan, state):
            observe("planned", entry)
    if plan.sites:
        state.granted = grant_ranks(plan, state, server, norms)


@dataclass(frozen=True)
class Told:
    """What a client told of its data: sketched gradients, and norms by part and layer."""

    sketches: Sketches
    norms: Norms


def ask_prints(plan: RunPlan, server: Server) -> dict[str, Told]:
    """The fingerprints of all clients that send a usable one."""
    request = encode({}, {"settings": plan.fingerprint.model_dump(mode="json")})
    found: dict[str, Told] = {}
    payloads = dict.fromkeys(sorted(plan.print_shapes), request)
    for client, message in server.ask("fingerprint", payloads, partial(_print_of, plan)).items():
        norms = message.facts["norms"]
        found[client] = Told(message.tensors, norms)
        entry = {"round": 0, "client": client, "examples": message.facts["examples"]}
        server.observe("fingerprinted", entry | {"norms": norms})
    return found


def _print_of(plan: RunPlan, client: str) -> Expected:
    """What a client's fingerprint must look like."""
    parts = set(plan.fingerprint.parts)

    def odd(facts: Mapping[str, Any]) -> str:
        if set(facts["norms"]) != parts:
            return f"norms: not those of {sorted(parts)}"
        layers = {layer for norms in facts["norms"].values() for layer in norms}
        strange = [layer for layer in sorted(layers) if not is_head(layer) and not in_block(layer)]
        return f"norms: {strange[0]!r} is in no block" if strange else ""

    return Expected(plan.print_shapes[client], max_norm=MAX_NORM, odd=odd)


def compare_clients(plan: RunPlan, state: ServerState, sketches: Mapping[str, Sketches]) -> None:
    """Fill in the plan of every cohort from its clients' sketches."""
    clusters = plan.clusters if plan.looks == "clusters" else None
    for name, cohort in state.cohorts.items():
        state.planned[name] = plan_cohort(
            sketches, cohort, plan.tasks, plan.fingerprint, clusters, plan.seed
        )


def describe_plan(plan: RunPlan, state: ServerState) -> list[dict[str, object]]:
    """The plan of every cohort as plain values."""
    found = []
    for name, planned in state.planned.items():
        cohort = state.cohorts[name]
        # Nobody has told yet how many examples there are; who is heard does not hang on it.
        alike = torch.ones(len(cohort.clients), dtype=torch.float64)
        view = replace(view_of(plan, state, cohort, number=0), examples=alike)
        heard = plan.strategy.plans == "clusters" and knows_enough(plan, view)
        learn = plan.strategy.relation if heard else None
        # A cohort's name here may be the folder its backbone is in; that is nobody's business.
        found.append(describe_planned(planned, view, cohort.layout.backbone, learn))
    return found
