"""The round loop: fit, guard, sign, relate, mix, deliver. It hides nothing and knows no engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from atlas.federation.adapters.adapter import adapter_shapes
from atlas.federation.adapters.cohort import restart
from atlas.federation.exchange.guard import Expected, Refusal, check_reply
from atlas.federation.exchange.message import Message, MessageError, decode, encode
from atlas.federation.exchange.transport import TaskName, Transport
from atlas.federation.fingerprints.planned import LARGEST_LOGGED
from atlas.federation.mixing.apply import mix_cohort, relate, view_of
from atlas.federation.mixing.deliver import (
    Mixing,
    Taken,
    deliver,
    describe_mixing,
    keepers,
    news_of,
    shut_names,
)
from atlas.federation.mixing.parts import PartMixer, parts_of, together
from atlas.federation.server import RunPlan, Server, ServerState
from atlas.federation.signatures.gather import gather_signatures, signature_request
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
    accepted = _fit(plan, server, clients, opened)
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
        state.cohorts[name] = trained
        routes = state.routes.routes(trained, opened) if opened else None
        whole = Mixing(trained, weights, (), view.clusters, routes)
        mixing, taken = _mix(server, whole, clients, rule)
        # Described before anybody starts again, which may write into what was trained.
        entry = describe_mixing(mixing, taken, rule)
        if rule.deliver == "merge":
            begun = [client for client, found in taken.items() if found.accept]
            state.cohorts[name] = restart(trained, begun, plan.seed)
        observe("mixed", {"round": number, **entry})
    if validates(plan, number):
        _validate(state, server)
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
            return ("evaluate", validation_request()) if validates(plan, number) else None
        signs = plan.strategy.signature != "none"
        return ("signature", signature_request(plan, number)) if signs else None

    return find


def _mix(
    server: Server, mixing: Mixing, asked: Sequence[str], rule: Strategy
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
    if isinstance(weights[0], Tensor):
        mixed = [mix_cohort(cohort, w, **rule.mixing, routes=routes) for w in weights]
        offered = [m.select(reached) for m in mixed]
        return replace(mixing, mixed=mixed), deliver(server, offered, own, rule, news)
    mixers = [PartMixer(cohort, w, **rule.mixing, routes=routes) for w in weights]
    for some in parts_of({"": cohort}, together(cohort, weights, reached)):
        taken |= deliver(server, [mixer.mix(some) for mixer in mixers], own, rule, news)
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
    state, rule, accepted = server.state, plan.strategy, {}
    asked = {client: _fit_request(plan, server.round, opened.get(client)) for client in clients}
    for client, reply in server.ask("fit", asked).items():
        message = check_reply(reply, _expected(state, rule, client, opened.get(client)))
        if isinstance(message, Refusal):
            server.refuse(client, message.reason)
            continue
        accepted[client] = message
        state.examples[client] = int(message.facts["examples"])
        if client in opened:
            state.routes.arrived(client, opened[client])
            _learn_salience(plan, server, client, message)
        facts = {name: message.facts.get(name) for name in ("examples", "steps", "loss")}
        if "beta" in message.facts:
            facts["beta"] = message.facts["beta"]
        split = server.count_split(client, message.facts)
        server.observe("fitted", {"round": server.round, "client": client, **facts, **split})
    return accepted


def _expected(
    state: ServerState, rule: Strategy, client: str, opened: Sequence[bool] | None
) -> Expected:
    """What a client's reply must hold."""
    wanted: dict[str, tuple[int, ...]] = {}
    for cohort in state.cohorts_of(client):
        shapes = adapter_shapes(cohort.layout, cohort.members[cohort.places[client]])
        shut = shut_names(cohort.layout, opened)
        wanted |= {k: v for k, v in shapes.items() if rule.travels(k) and k not in shut}
        dtype = next(iter(cohort.tensors.values())).dtype
    return Expected(wanted, dtype)


def _fit_request(plan: RunPlan, number: int, opened: Sequence[bool] | None) -> bytes:
    facts: dict[str, object] = {"round": number, "open": None, "measure": None}
    if opened is not None:
        facts["open"] = [module for module, is_open in enumerate(opened) if is_open]
        first = "gradient" if number == 1 else "product"  # nothing is learned yet to be multiplied
        facts["measure"] = first if plan.route.measure == "auto" else plan.route.measure
    return encode({}, facts)


def _learn_salience(plan: RunPlan, server: Server, client: str, message: Message) -> None:
    """Remember what a client says its modules counted; what is no answer changes nothing."""
    told: object = message.facts.get("salience")
    numbers = told if isinstance(told, list) else []
    sound = [float(x) for x in numbers if type(x) in (int, float) and 0 <= x < math.inf]
    if len(sound) != len(server.state.routes.sent[client]) or len(sound) != len(numbers):
        server.fail(client, "fit: salience is not one finite number for each module")
        return
    server.state.routes.learn(client, sound, plan.route.ema)


def validates(plan: RunPlan, number: int) -> bool:
    """Whether clients are asked for their validation scores in a round."""
    return plan.validate_every > 0 and number % plan.validate_every == 0


def validation_request() -> bytes:
    """What they are asked then."""
    return encode({}, {"split": "validation", "arm": "held"})


def _validate(state: ServerState, server: Server) -> None:
    request = validation_request()
    for some in parts_of(state.cohorts, state.clients):
        for client, facts in server.facts("evaluate", dict.fromkeys(some, request)).items():
            told = {"round": server.round, "client": client, "members": facts.get("members")}
            server.observe("validated", told)
