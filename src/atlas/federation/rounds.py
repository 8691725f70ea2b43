"""The round loop: fit, guard, relate, mix, deliver. It hides nothing and knows no engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from atlas.federation.adapters.adapter import adapter_shapes
from atlas.federation.adapters.cohort import restart
from atlas.federation.exchange.guard import Expected, Refusal, check_reply
from atlas.federation.exchange.message import Message, encode
from atlas.federation.exchange.transport import Transport
from atlas.federation.mixing.apply import mix_cohort, relate, view_of
from atlas.federation.mixing.deliver import Mixing, Taken, deliver, describe_mixing, keepers
from atlas.federation.mixing.parts import PartMixer, parts_of, together
from atlas.federation.server import RunPlan, Server, ServerState
from atlas.federation.strategies.base import Strategy
from atlas.runs.events import Observe
from atlas.runs.seeds import generator


def run_rounds(
    plan: RunPlan,
    state: ServerState,
    transport: Transport,
    observe: Observe,
    after_round: Callable[[ServerState], bool],
) -> bool:
    """Run the rounds that are left.

    Args:
        plan: The run's fixed choices.
        state: Changed in place, round by round.
        transport: Where clients are.
        observe: Receives events.
        after_round: Saves the round; returns False to stop after it.

    Returns:
        Whether all rounds are done.
    """
    while state.round < plan.rounds:
        run_round(plan, state, transport, observe)
        if not after_round(state):
            break
    return state.round >= plan.rounds


def run_round(plan: RunPlan, state: ServerState, transport: Transport, observe: Observe) -> None:
    """One round, from local training to delivered mixtures."""
    started = time.perf_counter()
    number = state.round + 1
    clients = sample_clients(plan, state, number)
    observe("round_started", {"round": number, "clients": clients})
    server = Server(state, transport, observe, number)
    rule = plan.strategy
    accepted = _fit(state, server, clients, rule)
    for name, cohort in list(state.cohorts.items()):
        replied = {c: m.tensors for c, m in accepted.items() if c in cohort.places}
        trained = cohort.put(replied) if rule.sends == "adapters" else cohort
        view = view_of(plan, state, trained, number)
        weights = relate(plan, view, set(replied))
        state.cohorts[name] = trained
        mixing, taken = _mix(server, Mixing(trained, weights, (), view.clusters), clients, rule)
        # Described before anybody starts again, which may write into what was trained.
        entry = describe_mixing(mixing, taken, rule)
        if rule.deliver == "merge":
            begun = [client for client, found in taken.items() if found.accept]
            state.cohorts[name] = restart(trained, begun, plan.seed)
        observe("mixed", {"round": number, **entry})
    if plan.validate_every and number % plan.validate_every == 0:
        _validate(state, server)
    state.round = number
    seconds = time.perf_counter() - started
    observe("round_finished", {"round": number, "seconds": seconds, **server.traffic})


def _mix(
    server: Server, mixing: Mixing, asked: Sequence[str], rule: Strategy
) -> tuple[Mixing, dict[str, Taken]]:
    """Mix for every client within reach and deliver, a part of them at a time.

    Returns:
        The mixing with what came of the last part (of few clients: of all), and what was taken.
    """
    cohort, weights = mixing.trained, mixing.weights
    own = keepers(cohort.clients, weights, rule)
    silent = own - set(asked)
    reached = [client for client in cohort.clients if client not in silent]
    taken: dict[str, Taken] = {}
    if isinstance(weights[0], Tensor):
        mixed = [mix_cohort(cohort, w, space=rule.space, heads=rule.heads) for w in weights]
        offered = [m.select(reached) for m in mixed]
        return replace(mixing, mixed=mixed), deliver(server, offered, own, rule)
    mixers = [PartMixer(cohort, w, rule.space, rule.heads) for w in weights]
    for some in parts_of({"": cohort}, together(cohort, weights, reached)):
        taken |= deliver(server, [mixer.mix(some) for mixer in mixers], own, rule)
    return mixing, taken


def sample_clients(plan: RunPlan, state: ServerState, number: int) -> list[str]:
    """Who is asked this round, addressed by seed and round alone."""
    everyone = sorted(client for cohort in state.cohorts.values() for client in cohort.clients)
    if plan.sample >= 1.0:
        return everyone
    size = max(1, math.ceil(plan.sample * len(everyone)))
    chosen = generator(plan.seed, "sample", number).choice(len(everyone), size, replace=False)
    return sorted(everyone[i] for i in chosen)


def _fit(
    state: ServerState, server: Server, clients: list[str], rule: Strategy
) -> dict[str, Message]:
    request = encode({}, {"round": server.round})
    accepted = {}
    for client, reply in server.ask("fit", dict.fromkeys(clients, request)).items():
        cohort = state.cohort_of(client)
        dtype = next(iter(cohort.tensors.values())).dtype
        member = cohort.members[cohort.places[client]]
        shapes = adapter_shapes(cohort.layout, member)
        expected = Expected({k: v for k, v in shapes.items() if rule.travels(k)}, dtype)
        message = check_reply(reply, expected)
        if isinstance(message, Refusal):
            server.refuse(client, message.reason)
            continue
        accepted[client] = message
        state.examples[client] = int(message.facts["examples"])
        facts = {name: message.facts.get(name) for name in ("examples", "steps", "loss")}
        split = server.count_split(client, message.facts)
        server.observe("fitted", {"round": server.round, "client": client, **facts, **split})
    return accepted


def _validate(state: ServerState, server: Server) -> None:
    request = encode({}, {"split": "validation", "arm": "held"})
    clients = sorted(c for cohort in state.cohorts.values() for c in cohort.clients)
    for some in parts_of(state.cohorts, clients):
        for client, facts in server.facts("evaluate", dict.fromkeys(some, request)).items():
            told = {"round": server.round, "client": client, "members": facts.get("members")}
            server.observe("validated", told)
