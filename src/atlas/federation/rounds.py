"""The round loop: fit, guard, sign, relate, mix, deliver. It hides nothing and knows no engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from atlas.federation.adapters.adapter import adapter_sha256, adapter_shapes, body_of
from atlas.federation.adapters.cohort import restart
from atlas.federation.exchange.guard import Expected, PackedReply, expect_scores
from atlas.federation.exchange.message import Message, MessageError, decode, encode
from atlas.federation.exchange.transport import TaskName, Transport
from atlas.federation.fingerprints.planned import LARGEST_LOGGED
from atlas.federation.mixing.apply import relate, view_of
from atlas.federation.mixing.deliver import (
    Mixing,
    Taken,
    deliver,
    describe_mixing,
    keepers,
    news_of,
    shut_names,
)
from atlas.federation.mixing.feedback import Remembered, start_cutting
from atlas.federation.mixing.parts import PartMixer, parts_of, together
from atlas.federation.mixing.shrink import remember_kept, shrink_steps
from atlas.federation.server import RunPlan, Server, ServerState
from atlas.federation.signatures.gather import gather_signatures, signature_request
from atlas.federation.state.references import References
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
    opened = open_modules(plan, server)
    if plan.wire.form != "plain" and not state.references.cohorts:
        state.references = References.at_start(state.cohorts)
    accepted = _fit(plan, server, clients, opened)
    state.references.arrived({client: message.tensors for client, message in accepted.items()})
    gather_signatures(plan, server, list(accepted))
    for name, cohort in list(state.cohorts.items()):
        replied = {
            client: {name: v for name, v in message.tensors.items() if name in cohort.tensors}
            for client, message in accepted.items()
            if client in cohort.places
        }
        trained = cohort.put(replied) if rule.sends == "adapters" else cohort
        view = view_of(plan, state, trained, number)
        weights = relate(plan, view, set(replied))
        weights = shrink_steps(plan, server, view, trained, weights, accepted)
        state.cohorts[name] = trained
        routes = state.routes.routes(trained, opened) if opened else None
        cutting = start_cutting(plan.mixing, rule, state, name)
        whole = Mixing(trained, weights, (), view.clusters, routes, cutting)
        remembered = Remembered.begin(trained, cutting)
        mixing, taken = _mix(server, whole, clients, rule, remembered)
        mixed_held = remembered is not None
        remember_kept(state.deviations, trained.clients, replied, taken, held=mixed_held)
        # Described before anybody starts again, which may write into what was trained.
        entry = describe_mixing(mixing, taken, rule)
        if remembered is not None:
            entry["feedback"] = remembered.settle(state, name)
        if rule.deliver == "merge":
            begun = [client for client, found in taken.items() if found.accept]
            state.cohorts[name] = restart(trained, begun, plan.seed)
            fresh = state.cohorts[name]
            state.references.arrived({client: body_of(fresh.take(client)) for client in begun})
        observe("mixed", {"round": number, **entry})
    if validates(plan, number):
        _validate(plan, server)
    state.round = number
    seconds = time.perf_counter() - started
    observe("round_finished", {"round": number, "seconds": seconds, **server.traffic})


def asked_next(plan: RunPlan) -> Callable[[TaskName, bytes], tuple[TaskName, bytes] | None]:
    """What every client will be asked right after a request, if that is known beforehand.

    Both change nothing, so an engine that pays for every message may send them along.
    """

    def find(task: TaskName, payload: bytes) -> tuple[TaskName, bytes] | None:
        if task not in ("fit", "deliver"):
            return None
        try:
            number = decode(payload).facts.get("round")
        except MessageError:
            return None  # the client will say so
        if type(number) is not int:
            return None
        if task == "deliver":
            return ("evaluate", validation_request(plan)) if validates(plan, number) else None
        signs = plan.strategy.signature != "none"
        return ("signature", signature_request(plan, number)) if signs else None

    return find


def _mix(
    server: Server,
    mixing: Mixing,
    asked: Sequence[str],
    rule: Strategy,
    remembered: Remembered | None,
) -> tuple[Mixing, dict[str, Taken]]:
    """Mix for every client within reach and deliver, a part of them at a time.

    Returns:
        The mixing with what came of the last part (of few clients: of all), and what was taken.
    """
    cohort, weights, routes = mixing.trained, mixing.weights, mixing.routes
    own = keepers(cohort.clients, weights, rule)
    silent = own - set(asked)
    reached = [client for client in cohort.clients if client not in silent]
    taken: dict[str, Taken] = {}
    news = news_of(mixing) if routes else None
    more: Any = {**rule.mixing, "routes": routes, "cutting": mixing.cutting}
    mixers = [PartMixer(cohort, w, **more) for w in weights]
    few = isinstance(weights[0], Tensor)
    if few:
        mixing = replace(mixing, mixed=[mixer.mix(cohort.clients) for mixer in mixers])
    for some in parts_of({"": cohort}, together(cohort, weights, reached)):
        offered = [m.select(some) for m in mixing.mixed] if few else [m.mix(some) for m in mixers]
        answers = deliver(server, offered, own, rule, news)
        if remembered is not None:
            remembered.note(server, mixers, offered, answers)
        taken |= answers
    return mixing, taken


def open_modules(plan: RunPlan, server: Server) -> dict[str, list[bool]]:
    """Which modules are open for every client this round; nothing where all of them are."""
    if plan.budget >= 1:
        return {}
    state, number = server.state, server.round
    found: dict[str, list[bool]] = {}
    for cohort in state.cohorts.values():
        opened = state.routes.choose(cohort, plan.route, plan.budget, plan.seed, number)
        found |= opened
        if len(cohort.clients) <= LARGEST_LOGGED:
            told = {"round": number, "cohort": cohort.layout.backbone, "open": opened}
            server.observe("routed", {**told, "modules": list(cohort.layout.modules)})
    return found


def sample_clients(plan: RunPlan, state: ServerState, number: int) -> list[str]:
    """Who is asked this round, addressed by seed and round alone."""
    everyone = state.clients
    if plan.sample >= 1.0:
        return everyone
    size = max(1, math.ceil(plan.sample * len(everyone)))
    chosen = generator(plan.seed, "sample", number).choice(len(everyone), size, replace=False)
    return sorted(everyone[i] for i in chosen)


def _fit(
    plan: RunPlan, server: Server, clients: list[str], opened: Mapping[str, Sequence[bool]]
) -> dict[str, Message]:
    """Have clients train; their replies, those that the guard lets in."""
    state, accepted = server.state, {}
    asked = {client: _fit_request(plan, server, client, opened.get(client)) for client in clients}
    wanted = partial(_expected, plan, state, opened)
    for client, message in server.ask("fit", asked, wanted).items():
        accepted[client] = message
        server.trained.add(client)
        state.examples[client] = message.facts["examples"]
        if client in opened:
            state.routes.arrived(client, opened[client])
            state.routes.learn(client, message.facts["salience"], plan.route.ema)
        told = ("examples", "steps", "loss", "beta", "form")
        facts = {name: message.facts[name] for name in told if name in message.facts}
        split = server.count_split(client, message.facts)
        server.observe("fitted", {"round": server.round, "client": client, **facts, **split})
    return accepted


def _shapes_sent(
    state: ServerState, rule: Strategy, client: str, opened: Sequence[bool] | None
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a client is to send."""
    wanted: dict[str, tuple[int, ...]] = {}
    for cohort in state.cohorts_of(client):
        shapes = adapter_shapes(cohort.layout, cohort.members[cohort.places[client]])
        shut = shut_names(cohort.layout, opened)
        wanted |= {k: v for k, v in shapes.items() if rule.travels(k) and k not in shut}
    return wanted


def _expected(
    plan: RunPlan, state: ServerState, opened: Mapping[str, Sequence[bool]], client: str
) -> Expected:
    """What a client's reply must hold."""
    wanted = _shapes_sent(state, plan.strategy, client, opened.get(client))
    modules = len(opened[client]) if client in opened else 0
    beside, split = plan.strategy.deliver == "global", plan.split.point is not None

    def odd(facts: Mapping[str, Any]) -> str:
        if len(facts.get("salience", ())) != modules:
            return f"salience: not one number for each of {modules} modules"
        if facts.get("beta") and not beside:
            return "beta: nothing stands beside an adapter in this run"
        if facts.get("split_up") and not split:
            return "split_up: no blocks are split in this run"
        return ""

    packed = None
    if plan.wire.form != "plain" and wanted:
        known = state.references.of(client, wanted)
        packed = PackedReply(plan.wire.form, plan.wire.share, known)
    dtype = next(next(iter(c.tensors.values())).dtype for c in state.cohorts_of(client))
    return Expected(wanted, dtype, packed=packed, odd=odd)


def _fit_request(
    plan: RunPlan, server: Server, client: str, opened: Sequence[bool] | None
) -> bytes:
    number, wire = server.round, plan.wire
    facts: dict[str, object] = {"round": number, "open": None, "measure": None}
    if opened is not None:
        facts["open"] = [module for module, is_open in enumerate(opened) if is_open]
        first = "gradient" if number == 1 else "product"  # nothing is learned yet to be multiplied
        facts["measure"] = first if plan.route.measure == "auto" else plan.route.measure
    elif plan.relation.eta == "shrink":
        facts["measure"] = "noise"
    if wire.form != "plain":
        wanted = _shapes_sent(server.state, plan.strategy, client, opened)
        known = server.state.references.of(client, wanted)
        facts["compress"] = wire.model_dump() | {"base": adapter_sha256(known)}
    return encode({}, facts)


def validates(plan: RunPlan, number: int) -> bool:
    """Whether clients are asked for their validation scores in a round."""
    return plan.validate_every > 0 and number % plan.validate_every == 0


def validation_request(plan: RunPlan) -> bytes:
    """What they are asked then: one message is for both curves, together and alone."""
    facts = {"split": "validation", "arm": "held"}
    return encode({}, facts | ({"beside": "alone"} if plan.shadows else {}))


def _validate(plan: RunPlan, server: Server) -> None:
    request, state = validation_request(plan), server.state

    def expected(client: str) -> Expected:
        return expect_scores([client], alone=plan.shadows)

    for some in parts_of(state.cohorts, state.clients):
        asked = dict.fromkeys(some, request)
        for client, facts in server.facts("evaluate", asked, expected).items():
            told = {"round": server.round, "client": client, "members": facts["members"]}
            server.observe("validated", told | ({"alone": facts["alone"]} if plan.shadows else {}))
