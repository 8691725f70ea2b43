"""Before the first round: ask for fingerprints, compare them, group the clients."""

from __future__ import annotations

from collections.abc import Mapping

from atlas.federation.desk import Desk, Observe, ServerState
from atlas.federation.guard import Expected, Refusal, check_reply
from atlas.federation.message import encode
from atlas.federation.plan import Plan
from atlas.federation.planned import describe_planned, plan_cohort
from atlas.federation.prints import Sketches
from atlas.federation.relate import view_of
from atlas.federation.transport import Transport

MAX_NORM = 1e6
"""Folds of a part add up to layers of length one, but a single fold can be much longer."""


def make_plan(plan: Plan, state: ServerState, transport: Transport, observe: Observe) -> None:
    """Find out what the strategy needs to know of the clients; nothing if it needs nothing."""
    if plan.strategy.plans == "nothing":
        return
    sketches = ask_prints(plan, Desk(state, transport, observe, round=0))
    compare_clients(plan, state, sketches)
    for entry in describe_plan(plan, state):
        observe("planned", entry)


def ask_prints(plan: Plan, desk: Desk) -> dict[str, Sketches]:
    """The fingerprints of all clients that send a usable one."""
    request = encode({}, {"settings": plan.fingerprint.model_dump(mode="json")})
    found: dict[str, Sketches] = {}
    payloads = dict.fromkeys(sorted(plan.print_shapes), request)
    for client, reply in desk.ask("fingerprint", payloads).items():
        message = check_reply(reply, Expected(plan.print_shapes[client], max_norm=MAX_NORM))
        if isinstance(message, Refusal):
            desk.refuse(client, f"fingerprint: {message.reason}")
            continue
        found[client] = message.tensors
        norms = message.facts.get("norms")
        entry = {"round": 0, "client": client, "examples": message.facts["examples"]}
        desk.observe("fingerprinted", entry | {"norms": norms})
    return found


def compare_clients(plan: Plan, state: ServerState, sketches: Mapping[str, Sketches]) -> None:
    """Fill in the plan of every cohort from its clients' sketches."""
    clusters = plan.clusters if plan.strategy.plans == "clusters" else None
    for name, cohort in state.cohorts.items():
        state.planned[name] = plan_cohort(
            sketches, cohort, plan.tasks, plan.fingerprint, clusters, plan.seed
        )


def describe_plan(plan: Plan, state: ServerState) -> list[dict[str, object]]:
    """The plan of every cohort as plain values."""
    return [
        describe_planned(planned, view_of(plan, state, state.cohorts[name], number=0), name)
        for name, planned in state.planned.items()
    ]
