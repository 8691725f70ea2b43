"""The end of a run: test data is read, adapters are written, the summary is drawn up."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from atlas.backbones.export import export_adapter
from atlas.build.federation import Federation
from atlas.build.models import open_backbone, text_limits
from atlas.federation.adapters.adapter import (
    Adapter,
    Member,
    adapter_sha256,
    adapter_shapes,
    bias_name,
    factor_names,
)
from atlas.federation.exchange.contents import read_scores
from atlas.federation.exchange.guard import Expected, expect_scores
from atlas.federation.exchange.message import Message, encode
from atlas.federation.exchange.transport import TaskName
from atlas.federation.mixing.energy import unused_ranks
from atlas.federation.mixing.parts import parts_of
from atlas.federation.server import Ledger, Server, ServerState
from atlas.federation.training.evaluate import Scores
from atlas.jobs.federation.own_data import data_facts, describe_data
from atlas.jobs.federation.plan import planned_clusters
from atlas.runs.events import Observe
from atlas.runs.folder import RunFolder, write_summary

BUDGET = ("device", "budget", "used", "valid", "measured", "lowered")
"""What the summary tells of a client's grant; the events tell all of it."""


def finish(
    federation: Federation, folder: RunFolder, observe: Observe, seconds: float
) -> dict[str, Any]:
    """Evaluate on test data, export every client's adapter and write the summary last."""
    began = time.perf_counter()
    if not federation.state.examples:
        raise RuntimeError(f"no client ever gave a usable reply: {reasons_of(federation.state)}")
    server = closing_server(federation, observe)
    scores = tested_scores(federation, server, "final")
    solo = tested_scores(federation, server, "alone") if federation.plan.shadows else None
    if solo is not None:
        # A gain takes both; who told only one of them is left out.
        scores = {client: found for client, found in scores.items() if client in solo}
    for client, found in sorted(scores.items()):
        alone = (solo or {}).get(client)
        observe("tested", {"client": client, "scores": found, "alone": alone})
    hashes = _export(federation, server, folder, scores)
    seconds += time.perf_counter() - began
    summary = summarise(federation, scores, solo, hashes) | {"seconds": round(seconds, 3)}
    write_summary(folder.summary, summary)
    observe("finished", {"summary": summary})
    return summary


def closing_server(federation: Federation, observe: Observe) -> Server:
    """Asks and checks at the end of a run; what that takes is not counted as the method's."""
    state = federation.state
    return Server(state, federation.engine, observe, state.round, uncounted=Ledger())


def ask_parts(
    federation: Federation,
    server: Server,
    task: TaskName,
    facts: Mapping[str, object],
    expected: Callable[[str], Expected],
) -> Iterator[dict[str, Message]]:
    """Ask all holders, a part of them at a time; see `federation.mixing.parts`."""
    for some in parts_of(federation.state.cohorts, list(federation.holders)):
        yield server.ask(task, dict.fromkeys(some, encode({}, facts)), expected)


def save_state(federation: Federation, client: str) -> bytes:
    """What a client saves of itself; there is no checkpoint without it: a failure ends the run."""
    reply = federation.engine.ask("save", {client: encode({}, {})})[client]
    if not isinstance(reply, bytes):
        raise RuntimeError(f"save of client {client} failed: {reply.reason}")
    return reply


def tested_scores(federation: Federation, server: Server, arm: str) -> dict[str, Scores]:
    """Test scores of every member client whose holder told them."""

    def expected(client: str) -> Expected:
        members = [member.id for member in federation.holders[client].members]
        return expect_scores(members, ("loss", "accuracy", "score"))

    found: dict[str, Scores] = {}
    for some in ask_parts(federation, server, "evaluate", {"split": "test", "arm": arm}, expected):
        for message in some.values():
            members = message.facts["members"].items()
            found |= {member: read_scores(told) for member, told in members}
    if not found:
        raise RuntimeError(f"no client gave usable test scores: {reasons_of(federation.state)}")
    return found


def reasons_of(state: ServerState) -> str:
    """Why clients failed, each reason once."""
    trouble = (*state.failures, *state.refused)
    return "; ".join(sorted({str(entry["reason"]) for entry in trouble}))


def _export(
    federation: Federation, server: Server, folder: RunFolder, scores: Mapping[str, Scores]
) -> dict[str, str]:
    """Write every holder's adapter for each of its members; returns their hashes."""
    hashes = {}
    # What looks at the token has no form that PEFT knows; such a run keeps its rounds alone.
    plain = all(model.layout.gate != "input" for model in federation.models.values())
    facts = {"arm": "final", "form": "plain" if plain else "own"}
    whole = Expected(shapes=None, max_norm=math.inf)
    for some in ask_parts(federation, server, "adapter", facts, lambda _: whole):
        for client, message in some.items():
            adapter = Adapter(message.tensors)
            problem = _misfit(federation, client, adapter) if plain else ""
            if problem:
                server.fail(client, f"adapter: {problem}")
                continue
            hashes[client] = adapter_sha256(adapter)
            if plain:
                _export_holder(federation, folder, client, adapter, scores)
    return hashes


def _misfit(federation: Federation, client: str, adapter: Adapter) -> str:
    """Why an adapter that was handed over is not of its client; its ranks are its own affair."""
    layout = replace(federation.models[client].layout, cores=(), gate="none", biased=False)
    firsts = (adapter.get(factor_names(module)[0]) for module in layout.modules)
    ranks = tuple(0 if a is None or not a.dim() else len(a) for a in firsts)
    member = Member(client, ranks, federation.holders[client].data.task.label_set)
    wanted = adapter_shapes(layout, member)
    biases = {
        bias_name(module): (out,)
        for module, (_, out) in zip(layout.modules, layout.widths, strict=True)
    }
    found = {name: tuple(value.shape) for name, value in adapter.items()}
    if not all(ranks) or found != wanted | {k: v for k, v in biases.items() if k in found}:
        return "it has not the names and sizes of the client's modules and head"
    return ""


def _export_holder(
    federation: Federation,
    folder: RunFolder,
    client: str,
    adapter: Adapter,
    scores: Mapping[str, Scores],
) -> None:
    holder, model = federation.holders[client], federation.models[client]
    # Whoever was away when tests were made has no scores for its card.
    for member in (member for member in holder.members if member.id in scores):
        export_adapter(
            folder.safe_child(member.id),
            backbone=open_backbone(federation.config, holder.data.backbone),
            task=member.task,
            limits=text_limits(federation.config).of(member.task),
            layers=adapter.layers,
            alpha=model.layout.alpha,
            head=adapter.head,
            biases=adapter.biases,
            card={
                "client": member.id,
                "strategy": federation.plan.strategy.name,
                "rounds": federation.plan.rounds,
                "test": dict(sorted(scores.get(member.id, {}).items())),
            },
        )


def summarise(
    federation: Federation,
    scores: Mapping[str, Scores],
    solo: Mapping[str, Scores] | None,
    hashes: Mapping[str, str],
) -> dict[str, Any]:
    """The summary without its seconds; see `runs/summary.schema.json`."""
    state, plan = federation.state, federation.plan
    everybody = (m for holder in federation.holders.values() for m in holder.members)
    members = {member.id: member for member in everybody if member.id in scores}
    data = data_facts(federation)
    score = {client: scores[client]["score"] for client in sorted(scores)}
    digest = hashlib.sha256()
    for client, sha256 in sorted(hashes.items()):
        digest.update(f"{client} {sha256}\n".encode())
    summary: dict[str, Any] = {
        "kind": "federation",
        "strategy": plan.strategy.name,
        "rounds": state.round,
        "seed": plan.seed,
        "score": _spread(score),
        "metrics": {client: members[client].task.metric for client in sorted(members)},
        "accuracy": _spread({client: scores[client]["accuracy"] for client in sorted(scores)}),
        "majority": {"clients": {client: data[client].majority for client in sorted(members)}},
        "loss": _mean_of({client: scores[client]["loss"] for client in sorted(scores)}),
        "test_examples": {client: data[client].test for client in sorted(members)},
        "bytes": {
            "up": state.ledger.total("up"),
            "down": state.ledger.total("down"),
            "clients": {client: dict(both) for client, both in sorted(state.ledger.totals.items())},
            **({"split": dict(state.ledger.split)} if any(state.ledger.split.values()) else {}),
        },
        "ranks": {
            member.id: list(federation.ranks[holder.id])
            for holder in federation.holders.values()
            for member in holder.members
        },
        "refused": state.refused,
        "failures": state.failures,
        "adapters_sha256": digest.hexdigest(),
    }
    chance = {client: data[client].chance for client in sorted(members)}
    summary |= _where_there_is(federation, chance)
    if solo is not None:
        alone = {client: solo[client]["score"] for client in score}
        gains = [score[client] - alone[client] for client in score]
        summary["alone"] = _mean_of(alone)
        summary["loss"]["alone"] = {client: solo[client]["loss"] for client in score}
        summary["gain"] = {"mean": statistics.fmean(gains), "worst": min(gains)}
    return summary


def _where_there_is(federation: Federation, guesses: Mapping[str, float | None]) -> dict[str, Any]:
    """The parts of a summary that only some runs have."""
    state, plan = federation.state, federation.plan
    found: dict[str, Any] = {}
    if (alignment := federation.alignment) is not None:
        found["alignment"] = {key: value for key, value in alignment.items() if key != "modules"}
    if plan.budget < 1:
        found["route"] = {"budget": plan.budget, "choice": plan.route.choice}
    if plan.relation.eta == "shrink":
        found["steps"] = {client: state.steps.get(client) for client in state.clients}
    chance = {client: share for client, share in guesses.items() if share is not None}
    if chance:
        found["chance"] = {"clients": chance}
    if data := describe_data(federation):
        found["data"] = data
    if unused := _unused(federation):
        found["unused"] = unused
    if (clusters := planned_clusters(federation)) is not None:
        found["clusters"] = clusters
    if state.granted:
        found["budgets"] = {
            client: {key: entry[key] for key in BUDGET}
            for client, entry in sorted(state.granted.items())
        }
    return found


def _unused(federation: Federation) -> dict[str, Any]:
    """Clients that use little of their ranks, where the server knows adapters."""
    if federation.plan.strategy.sends != "adapters":
        return {}
    cohorts = federation.state.cohorts.values()
    return {client: told for cohort in cohorts for client, told in unused_ranks(cohort).items()}


def _mean_of(values: Mapping[str, float]) -> dict[str, Any]:
    return {"mean": statistics.fmean(values.values()), "clients": dict(values)}


def _spread(values: Mapping[str, float]) -> dict[str, Any]:
    return {
        "mean": statistics.fmean(values.values()),
        "spread": statistics.pstdev(values.values()),
        "worst": min(values.values()),
        "clients": dict(values),
    }
