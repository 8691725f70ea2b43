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
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Failure, TaskName
from atlas.federation.mixing.parts import parts_of
from atlas.federation.training.evaluate import Scores
from atlas.jobs.federation.own_data import data_facts, describe_data
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
    if not scores:
        raise RuntimeError("no client could be tested; what was saved can be resumed")
    solo = _test(federation, "alone") if federation.has_shadows else None
    if solo is not None:  # whoever went away in between has neither
        scores = {client: found for client, found in scores.items() if client in solo}
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
    """`ask_all` of some holders; those on other machines may be away, which is recorded."""
    replies = federation.engine.ask(task, dict.fromkeys(some, encode({}, facts)))
    state = federation.state
    for client, reply in sorted(replies.items()):
        if not isinstance(reply, Failure):
            continue
        if not federation.told:
            raise RuntimeError(f"{task} of client {client} failed: {reply.reason}")
        reason = f"{task}: {reply.reason}"
        state.failures.append({"round": state.round, "client": client, "reason": reason})
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
            if plain and client in scores:
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
    everybody = {m.id: m for holder in federation.holders.values() for m in holder.members}
    members = {client: member for client, member in everybody.items() if client in scores}
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
    chance = {client: share for client, share in guesses.items() if share is not None}
    if chance:
        found["chance"] = {"clients": chance}
    if data := describe_data(federation):
        found["data"] = data
    if (clusters := planned_clusters(federation)) is not None:
        found["clusters"] = clusters
    if state.granted:
        found["budgets"] = {
            client: {key: entry[key] for key in BUDGET}
            for client, entry in sorted(state.granted.items())
        }
    return found


def _mean_of(values: Mapping[str, float]) -> dict[str, Any]:
    return {"mean": statistics.fmean(values.values()), "clients": dict(values)}


def _spread(values: Mapping[str, float]) -> dict[str, Any]:
    return {
        "mean": statistics.fmean(values.values()),
        "spread": statistics.pstdev(values.values()),
        "worst": min(values.values()),
        "clients": dict(values),
    }
