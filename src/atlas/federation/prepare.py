"""Before the first round: ask for fingerprints, compare them, group the clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atlas.federation.allotting import allot
from atlas.federation.exchange.guard import Expected, Refusal, check_reply
from atlas.federation.exchange.message import encode
from atlas.federation.exchange.transport import Transport
from atlas.federation.fingerprints.compare import Sketches
from atlas.federation.fingerprints.planned import describe_planned, plan_cohort
from atlas.federation.importance import Norms
from atlas.federation.plan import Plan
from atlas.federation.relate import view_of
from atlas.federation.server import Desk, Observe, ServerState

MAX_NORM = 1e6
"""Folds of a part add up to layers of length one, but a single fold can be much longer."""


def make_plan(plan: Plan, state: ServerState, transport: Transport, observe: Observe) -> None:
    """Find out what the run needs to know of the clients, and grant their ranks."""
    desk = Desk(state, transport, observe, round=0)
    norms: dict[str, Norms] = {}
    if plan.looks != "nothing":
        found = ask_prints(plan, desk)
        norms = {client: one.norms for client, one in found.items()}
        compare_clients(plan, state, {client: one.sketches for client, one in found.items()})
        for entry in describe_plan(plan, state):
            observe("planned", entry)
    if plan.sites:
        state.allotted = allot(plan, state, desk, norms)


@dataclass(frozen=True)
class Told:
    """What a client told of its data: sketched gradients, and norms by part and layer."""

    sketches: Sketches
    norms: Norms


def ask_prints(plan: Plan, desk: Desk) -> dict[str, Told]:
    """The fingerprints of all clients that send a usable one."""
    request = encode({}, {"settings": plan.fingerprint.model_dump(mode="json")})
    found: dict[str, Told] = {}
    payloads = dict.fromkeys(sorted(plan.print_shapes), request)
    for client, reply in desk.ask("fingerprint", payloads).items():
        message = check_reply(reply, Expected(plan.print_shapes[client], max_norm=MAX_NORM))
        if isinstance(message, Refusal):
            desk.refuse(client, f"fingerprint: {message.reason}")
            continue
        norms = message.facts.get("norms")
        found[client] = Told(message.tensors, _checked(norms))
        entry = {"round": 0, "client": client, "examples": message.facts["examples"]}
        desk.observe("fingerprinted", entry | {"norms": norms})
    return found


def _checked(norms: object) -> Norms:
    """Norms as a client told them; whatever is no finite number is left out."""
    if not isinstance(norms, dict):
        return {}
    return {
        part: {k: float(v) for k, v in layers.items() if isinstance(v, int | float) and v >= 0}
        for part, layers in norms.items()
        if isinstance(layers, dict)
    }


def compare_clients(plan: Plan, state: ServerState, sketches: Mapping[str, Sketches]) -> None:
    """Fill in the plan of every cohort from its clients' sketches."""
    clusters = plan.clusters if plan.looks == "clusters" else None
    for name, cohort in state.cohorts.items():
        state.planned[name] = plan_cohort(
            sketches, cohort, plan.tasks, plan.fingerprint, clusters, plan.seed
        )


def describe_plan(plan: Plan, state: ServerState) -> list[dict[str, object]]:
    """The plan of every cohort as plain values."""
    found = []
    for name, planned in state.planned.items():
        cohort = state.cohorts[name]
        view = view_of(plan, state, cohort, number=0)
        # A cohort's name here may be the folder its backbone is in; that is nobody's business.
        found.append(describe_planned(planned, view, cohort.layout.backbone))
    return found
