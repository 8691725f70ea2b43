"""The end of a run: test data is read, adapters are written, the summary is drawn up."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atlas.backbones.export import export_adapter
from atlas.build.federation import Federation
from atlas.build.models import open_backbone, text_limits
from atlas.federation.adapters.adapter import Adapter, adapter_sha256
from atlas.federation.clients import ClientData
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Failure, TaskName
from atlas.federation.mixing.energy import unused_ranks
from atlas.federation.mixing.parts import parts_of
from atlas.federation.training.evaluate import Scores, chance_score, majority_scores
from atlas.jobs.federation.own_data import describe_data
from atlas.jobs.federation.plan import planned_clusters
from atlas.runs.events import Observe
from atlas.runs.folder import RunFolder, write_summary

BUDGET = ("device", "budget", "used", "valid", "measured")
"""What the summary tells of a client's grant; the events tell all of it."""


def finish(
    federation: Federation, folder: RunFolder, observe: Observe, seconds: float
) -> dict[str, Any]:
    """Evaluate on test data, export every client's adapter and write the summary last."""
    began = time.perf_counter()
    if not federation.state.examples:
        reasons = {str(entry["reason"]) for entry in federation.state.failures}
        raise RuntimeError(f"no client ever gave a usable reply: {'; '.join(sorted(reasons))}")
    scores = _test(federation, "final")
    solo = _test(federation, "alone") if federation.has_shadows else None
    for client, found in sorted(scores.items()):
        alone = (solo or {}).get(client)
        observe("tested", {"client": client, "scores": found, "alone": alone})
    hashes = _export(federation, folder, scores)
    seconds += time.perf_counter() - began
    summary = summarise(federation, scores, solo, hashes) | {"seconds": round(seconds, 3)}
    write_summary(folder.summary, summary)
    observe("finished", {"summary": summary})
    return summary


def ask_all(
    federation: Federation, task: TaskName, facts: Mapping[str, object]
) -> dict[str, bytes]:
    """Ask every holder something that must not fail; a failure ends the run."""
    return {c: r for some in ask_parts(federation, task, facts) for c, r in some.items()}


def ask_parts(
    federation: Federation, task: TaskName, facts: Mapping[str, object]
) -> Iterator[dict[str, bytes]]:
    """`ask_all` of a part of the holders at a time; see `federation.mixing.parts`."""
    for some in parts_of(federation.state.cohorts, list(federation.holders)):
        yield ask_some(federation, task, facts, some)


def ask_some(
    federation: Federation, task: TaskName, facts: Mapping[str, object], some: Sequence[str]
) -> dict[str, bytes]:
    """`ask_all` of some holders."""
    replies = federation.engine.ask(task, dict.fromkeys(some, encode({}, facts)))
    for client, reply in sorted(replies.items()):
        if isinstance(reply, Failure):
            raise RuntimeError(f"{task} of client {client} failed: {reply.reason}")
    return {client: reply for client, reply in replies.items() if isinstance(reply, bytes)}


def _test(federation: Federation, arm: str) -> dict[str, Scores]:
    """Test scores of every member client."""
    found: dict[str, Scores] = {}
    for reply in ask_all(federation, "evaluate", {"split": "test", "arm": arm}).values():
        found |= decode(reply).facts["members"]
    return found


def _export(
    federation: Federation, folder: RunFolder, scores: Mapping[str, Scores]
) -> dict[str, str]:
    """Write every holder's adapter for each of its members; returns their hashes."""
    hashes = {}
    # What looks at the token has no form that PEFT knows; such a run keeps its rounds alone.
    plain = all(model.layout.gate != "input" for model in federation.models.values())
    form = "plain" if plain else "own"
    for replies in ask_parts(federation, "adapter", {"arm": "final", "form": form}):
        for client, reply in replies.items():
            adapter = Adapter(decode(reply).tensors)
            hashes[client] = adapter_sha256(adapter)
            if plain:
                _export_holder(federation, folder, client, adapter, scores)
    return hashes


def _export_holder(
    federation: Federation,
    folder: RunFolder,
    client: str,
    adapter: Adapter,
    scores: Mapping[str, Scores],
) -> None:
    holder, model = federation.holders[client], federation.models[client]
    for member in holder.members:
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
                "test": dict(sorted(scores[member.id].items())),
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
    members = {m.id: m for holder in federation.holders.values() for m in holder.members}
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
        "majority": {
            "clients": {
                client: majority_scores(m.task, m.train, m.test)["score"]
                for client, m in sorted(members.items())
            }
        },
        "loss": _mean_of({client: scores[client]["loss"] for client in sorted(scores)}),
        "test_examples": {client: len(m.test) for client, m in sorted(members.items())},
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
    summary |= _where_there_is(federation, members)
    if solo is not None:
        alone = {client: solo[client]["score"] for client in score}
        gains = [score[client] - alone[client] for client in score]
        summary["alone"] = _mean_of(alone)
        summary["loss"]["alone"] = {client: solo[client]["loss"] for client in score}
        summary["gain"] = {"mean": statistics.fmean(gains), "worst": min(gains)}
    return summary


def _where_there_is(federation: Federation, members: Mapping[str, ClientData]) -> dict[str, Any]:
    """The parts of a summary that only some runs have."""
    state, plan = federation.state, federation.plan
    found: dict[str, Any] = {}
    if (alignment := federation.alignment) is not None:
        found["alignment"] = {key: value for key, value in alignment.items() if key != "modules"}
    if plan.budget < 1:
        found["route"] = {"budget": plan.budget, "choice": plan.route.choice}
    if plan.relation.eta == "shrink":
        found["steps"] = {client: state.steps.get(client) for client in state.clients}
    guesses = {client: chance_score(m.task, m.test) for client, m in sorted(members.items())}
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
