"""The round loop: fit, guard, relate, mix, deliver. It hides nothing and knows no engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atlas.federation.cohort import Cohort, adapter_sha256, adapter_shapes, mix_cohort
from atlas.federation.desk import Desk, Observe, ServerState
from atlas.federation.guard import Expected, Refusal, check_reply
from atlas.federation.message import Message, encode
from atlas.federation.strategy import Strategy, View
from atlas.federation.transport import Transport
from atlas.ops.mixing import check_mixing, is_identity_row, restrict
from atlas.runs.seeds import generator

LARGEST_LOGGED = 64
"""W is written into the events up to this many clients."""


@dataclass(frozen=True)
class Plan:
    """What stays the same over all rounds.

    Attributes:
        strategy: The server's rule.
        tasks: Task name of every client.
        rounds: How many rounds to run.
        seed: Run seed.
        sample: Share of clients asked in each round.
        absent: `restrict` mixes those who replied; `last` also uses what others last sent.
        validate_every: Rounds between validations; zero for never.
    """

    strategy: Strategy
    tasks: Mapping[str, str]
    rounds: int
    seed: int
    sample: float = 1.0
    absent: str = "restrict"
    validate_every: int = 1


def run_rounds(
    plan: Plan,
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


def run_round(plan: Plan, state: ServerState, transport: Transport, observe: Observe) -> None:
    """One round, from local training to delivered mixtures."""
    started = time.perf_counter()
    number = state.round + 1
    clients = sample_clients(plan, state, number)
    observe("round_started", {"round": number, "clients": clients})
    desk = Desk(state, transport, observe, number)
    accepted = _fit(state, desk, clients)
    for name, cohort in list(state.cohorts.items()):
        replied = {c: m.tensors for c, m in accepted.items() if c in cohort.clients}
        trained = cohort.put(replied)
        weights = relate(plan, state, trained, set(replied), number)
        mixed = mix_cohort(trained, weights, space=plan.strategy.space, heads=plan.strategy.heads)
        state.cohorts[name] = trained
        accepts = _deliver(desk, mixed, weights, set(clients))
        _log_mixture(observe, number, trained, weights, accepts)
    if plan.validate_every and number % plan.validate_every == 0:
        _validate(state, desk)
    state.round = number
    seconds = time.perf_counter() - started
    observe("round_finished", {"round": number, "seconds": seconds, **desk.traffic})


def sample_clients(plan: Plan, state: ServerState, number: int) -> list[str]:
    """Who is asked this round, addressed by seed and round alone."""
    everyone = sorted(client for cohort in state.cohorts.values() for client in cohort.clients)
    if plan.sample >= 1.0:
        return everyone
    size = max(1, math.ceil(plan.sample * len(everyone)))
    chosen = generator(plan.seed, "sample", number).choice(len(everyone), size, replace=False)
    return sorted(everyone[i] for i in chosen)


def relate(
    plan: Plan, state: ServerState, cohort: Cohort, replied: set[str], number: int
) -> Tensor:
    """The W of this round, after the policies for absent clients."""
    clients = cohort.clients
    identity = torch.eye(len(clients), dtype=torch.float64)
    if not replied:
        return identity
    examples = [state.examples.get(c, 0) for c in clients]
    known = set(replied)
    if plan.absent == "last":
        known |= {client for client, count in zip(clients, examples, strict=True) if count}
    view = View(
        clients=clients,
        examples=torch.tensor(examples, dtype=torch.float64),
        tasks=tuple(plan.tasks[client] for client in clients),
        round=number,
    )
    weights = plan.strategy.relation(view)
    check_mixing(weights)
    weights = restrict(weights, torch.tensor([client in known for client in clients]))
    if plan.strategy.reach == "present":
        present = torch.tensor([client in replied for client in clients])
        weights = torch.where(present[:, None], weights, identity)
    return weights


def _fit(state: ServerState, desk: Desk, clients: list[str]) -> dict[str, Message]:
    request = encode({}, {"round": desk.round})
    accepted = {}
    for client, reply in desk.ask("fit", dict.fromkeys(clients, request)).items():
        cohort = state.cohort_of(client)
        dtype = next(iter(cohort.tensors.values())).dtype
        member = cohort.members[cohort.clients.index(client)]
        expected = Expected(adapter_shapes(cohort.layout, member), dtype)
        message = check_reply(reply, expected)
        if isinstance(message, Refusal):
            desk.refuse(client, message.reason)
            continue
        accepted[client] = message
        state.examples[client] = int(message.facts["examples"])
        facts = {name: message.facts.get(name) for name in ("examples", "steps", "loss")}
        desk.observe("fitted", {"round": desk.round, "client": client, **facts})
    return accepted


def _deliver(desk: Desk, mixed: Cohort, weights: Tensor, asked: set[str]) -> dict[str, float]:
    """Send every client within reach its mixture; returns how much of it each accepted.

    A client whose row is e_k holds the result already. It is sent no tensors, unless its reply was
    refused: then it gets back the last good adapter the server has of it.
    """
    own = is_identity_row(weights) if weights.dim() == 2 else is_identity_row(weights).all(0)
    payloads, sent = {}, {}
    for row, client in enumerate(mixed.clients):
        if client not in asked and bool(own[row]):
            continue
        news = not bool(own[row]) or client in desk.refused
        adapter = mixed.take(client) if news else {}
        payloads[client] = encode(adapter, {"round": desk.round})
        sent[client] = adapter_sha256(adapter) if adapter else ""
    accepts = {}
    for client, facts in desk.facts("deliver", payloads).items():
        accept = facts.get("accept")
        accepts[client] = float(accept) if isinstance(accept, int | float) else 0.0
        if sent[client] and accepts[client] == 1.0 and facts.get("sha256") != sent[client]:
            desk.fail(client, "deliver: the client does not hold what was sent")
        desk.observe("delivered", {"round": desk.round, "client": client, **facts})
    return accepts


def _log_mixture(
    observe: Observe, number: int, cohort: Cohort, weights: Tensor, accepts: Mapping[str, float]
) -> None:
    """Log W as it acted: a client that accepted a share s of its row has (1-s) e_k + s W_k."""
    share = torch.tensor([accepts.get(c, 0.0) for c in cohort.clients], dtype=weights.dtype)
    identity = torch.eye(len(cohort.clients), dtype=weights.dtype)
    effective = (1 - share)[:, None] * identity + share[:, None] * weights
    entry: dict[str, object] = {"round": number, "cohort": cohort.layout.backbone}
    if len(cohort.clients) <= LARGEST_LOGGED:
        entry |= {"clients": list(cohort.clients), "weights": effective.tolist()}
    observe("mixed", entry)


def _validate(state: ServerState, desk: Desk) -> None:
    request = encode({}, {"split": "validation", "arm": "held"})
    clients = sorted(c for cohort in state.cohorts.values() for c in cohort.clients)
    for client, facts in desk.facts("evaluate", dict.fromkeys(clients, request)).items():
        scores = facts.get("members")
        desk.observe("validated", {"round": desk.round, "client": client, "members": scores})


def without_heads(cohort: Cohort) -> Cohort:
    """What a server that never sees heads keeps of a cohort."""
    members = tuple(replace(member, label_set=()) for member in cohort.members)
    tensors = {k: v for k, v in cohort.tensors.items() if not k.startswith("head/")}
    return Cohort(replace(cohort.layout, head=()), members, tensors)
