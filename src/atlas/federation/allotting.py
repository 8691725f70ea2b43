"""Before the first round: ask what clients' texts take, grant ranks, and hand them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from atlas.config.capacity import MB
from atlas.errors import InputError
from atlas.federation.adapters.cohort import Cohort, initial_cohort
from atlas.federation.capacity.cost import block_of
from atlas.federation.capacity.grant import Grant, Site, Texts, budget_of, grant, least_ranks
from atlas.federation.exchange.message import encode
from atlas.federation.exchange.transport import Failure, Transport
from atlas.federation.importance import Norms, complexities, importance_of
from atlas.federation.plan import Plan
from atlas.federation.server import Desk, ServerState
from atlas.ops.splitting import Division, choose_division

Allotted = dict[str, dict[str, object]]
"""By client: its grant as plain values, and the memory that a trial step really took."""


def allot(plan: Plan, state: ServerState, desk: Desk, norms: Mapping[str, Norms]) -> Allotted:
    """Grant every client its ranks and start it again with an adapter of that size.

    A client that does not answer, or with what is no answer, keeps the ranks it has.

    Args:
        plan: Where clients train and how ranks are granted.
        state: Its cohorts are made anew.
        desk: Asks the clients.
        norms: Gradient norms of those who sent a fingerprint.

    Raises:
        InputError: If a device cannot hold the smallest ranks.
    """
    told = desk.facts("capacity", {client: encode({}, {}) for client in sorted(plan.sites)})
    texts = {client: _texts(desk, client, facts) for client, facts in told.items()}
    grants = grant_all(plan, state, {c: known for c, known in texts.items() if known}, norms)
    regrade(state, {client: found.ranks for client, found in grants.items()}, plan.seed)
    payloads = {
        client: encode({}, {"ranks": list(found.ranks), "point": found.point, "trial": True})
        for client, found in grants.items()
    }
    measured = desk.facts("assign", payloads)
    allotted: Allotted = {}
    for client, found in grants.items():
        took = {"measured": measured.get(client, {}).get("bytes")}
        allotted[client] = found.describe() | took
        desk.observe("granted", {"round": 0, "client": client, **allotted[client]})
    return allotted


def grant_all(
    plan: Plan,
    state: ServerState,
    known: Mapping[str, Texts],
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
        point = split_point(client, plan, texts, importance)
        need = site.need(texts, point)
        given = grant(client, site, need, plan.ranks, importance, hard.get(client, 1.0))
        found[client] = replace(given, point=point)
    return found


def split_point(client: str, plan: Plan, texts: Texts, importance: Sequence[float]) -> int | None:
    """Blocks a client runs itself; None for all. `auto` weighs what its device can hold.

    Raises:
        InputError: If the device could not even hold the first block.
    """
    if plan.split.point != "auto":
        return plan.split.point
    site = plan.sites[client]
    whole = budget_of(site, site.need(texts), plan.ranks)
    points = range(1, site.depth + 1)
    divisions = [_division(site, plan, p, texts, importance, whole) for p in points]
    best = choose_division(divisions, site.depth, plan.split.weights.model_dump())
    if best is None:
        least = min(site.need(texts, p).fixed for p in points)
        raise InputError(
            f"client {client} ({site.device}): {whole / MB:.1f} MB for training, but one block "
            f"with its embeddings takes {least / MB:.1f} MB; no split helps"
        )
    return best.point if best.point < site.depth else None


def _division(
    site: Site,
    plan: Plan,
    point: int,
    texts: Texts,
    importance: Sequence[float],
    budget: int,
) -> Division:
    need = site.need(texts, point)
    modules = zip(site.layout.modules, importance, strict=True)
    here = sum(own for module, own in modules if block_of(module) < point)
    traffic = 0 if point == site.depth else 1 + (point > site.first_block)
    least = need.total(least_ranks(site, plan.ranks))
    return Division(point, least / budget, traffic, here / sum(importance))


def _texts(desk: Desk, client: str, told: Mapping[str, object]) -> Texts | None:
    """What a client told of its texts; None, and a failure on record, if it is no answer."""
    found = {key: told.get(key) for key in Texts._fields}
    sizes = [value for value in found.values() if type(value) is int and value >= 0]
    if len(sizes) < len(found):
        desk.fail(client, f"capacity: {found} are not whole numbers")
        return None
    return Texts(*sizes)


def regrade(state: ServerState, ranks: Mapping[str, Sequence[int]], seed: int) -> None:
    """Give the server's cohorts other ranks; all adapters are initial ones again."""
    for name, cohort in state.cohorts.items():
        state.cohorts[name] = regraded(cohort, ranks, seed)


def regraded(cohort: Cohort, ranks: Mapping[str, Sequence[int]], seed: int) -> Cohort:
    """A cohort at its start, with other ranks for the clients named."""
    members = [
        replace(member, ranks=tuple(ranks[member.id])) if member.id in ranks else member
        for member in cohort.members
    ]
    some = next(iter(cohort.tensors.values()))
    start = initial_cohort(cohort.layout, members, seed, dtype=some.dtype, device=some.device)
    return replace(start, trains=cohort.trains)


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
