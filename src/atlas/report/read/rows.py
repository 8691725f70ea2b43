"""Results of a run as rows of plain values: by client or arm, by round, and who learned from whom.

These are what `Run.table`, `Run.rounds` and `Run.weights` show as tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atlas.errors import InputError

Events = Sequence[Mapping[str, Any]]
Rows = list[dict[str, Any]]


def client_rows(summary: Mapping[str, Any], tasks: Mapping[str, str]) -> Rows:
    """One row for each client of a finished federation; scores are shares of one."""
    alone = summary.get("alone", {}).get("clients", {})
    clusters = summary.get("clusters", {}).get("labels", {})
    rows = []
    for client, score in summary["score"]["clients"].items():
        ranks, sent = summary["ranks"].get(client), summary["bytes"]["clients"].get(client, {})
        solo = alone.get(client)
        rows.append(
            {
                "client": client,
                "task": tasks.get(client),
                "metric": summary["metrics"][client],
                "score": score,
                "alone": solo,
                "gain": None if solo is None else score - solo,
                "majority": summary["majority"]["clients"][client],
                "accuracy": summary["accuracy"]["clients"][client],
                "loss": summary["loss"]["clients"][client],
                "test_examples": summary["test_examples"][client],
                "cluster": clusters.get(client),
                "rank": statistics.fmean(ranks) if ranks else None,
                "up": sent.get("up"),
                "down": sent.get("down"),
            }
        )
    return rows


def arm_rows(summary: Mapping[str, Any]) -> Rows:
    """One row for each model of a finished memory or grokking run; nested figures left out."""
    return [
        {"arm": arm, **{k: v for k, v in facts.items() if not isinstance(v, Mapping | list)}}
        for arm, facts in summary["arms"].items()
    ]


def round_rows(events: Events) -> Rows:
    """One row for each round: means over its clients, or a column for each arm."""
    rounds: dict[int, dict[str, list[float]]] = {}
    for each in client_round_rows(events):
        kept = rounds.setdefault(each["round"], {})
        for key in ("loss", "score", "alone", "accept"):
            if each.get(key) is not None:
                kept.setdefault(key, []).append(each[key])
    errors: dict[int, list[float]] = {}
    for event in _last(events, "mixed", ("round", "cohort")):
        if event.get("error"):
            errors.setdefault(event["round"], []).append(event["error"]["mean"])
    rows = []
    for event in _last(events, "round_finished", ("round",)):
        number = event["round"]
        row: dict[str, Any] = {"round": number}
        row |= {key: statistics.fmean(some) for key, some in rounds.get(number, {}).items()}
        if number in errors:
            row["mix_error"] = statistics.fmean(errors[number])
        rows.append(row | _flat(event))
    return rows


def client_round_rows(events: Events) -> Rows:
    """One row for each client in each round.

    Training loss, validation score, that of training alone where there is a shadow, and what the
    client accepted.
    """
    rows: dict[tuple[int, str], dict[str, Any]] = {}

    def row(number: int, client: str) -> dict[str, Any]:
        return rows.setdefault((number, client), {"round": number, "client": client})

    for event in events:
        if event["event"] == "fitted":
            own = row(event["round"], event["client"])
            own |= {key: event[key] for key in ("loss", "steps", "examples")}
        elif event["event"] == "delivered":
            row(event["round"], event["client"])["accept"] = event["accept"]
        elif event["event"] == "validated":
            for column, scored in (("score", "members"), ("alone", "alone")):
                for client, scores in (event.get(scored) or {}).items():
                    row(event["round"], client)[column] = scores.get("score")
    return [rows[key] for key in sorted(rows)]


def mixing_weights(
    events: Events, number: int | None = None, cohort: str | None = None, module: int | None = None
) -> tuple[list[str], NDArray[np.float64]]:
    """Clients, and the weights by which their adapters were made in a round.

    Args:
        events: Of the run.
        number: The round; None for the last one.
        cohort: The backbone, where a run has several.
        module: Of routed runs, whose W differ from module to module; None for their mean.

    Raises:
        InputError: There is no such W in the log.
    """
    kept = [e for e in events if e["event"] == "mixed" and "weights" in e]
    if not kept:
        raise InputError("weights: no W in events.jsonl; it is logged for up to 64 clients")
    cohorts = sorted({event["cohort"] for event in kept})
    if cohort is None and len(cohorts) > 1:
        raise InputError(f"weights: several cohorts; name one: {', '.join(cohorts)}")
    name = cohorts[0] if cohort is None else cohort
    own = {event["round"]: event for event in kept if event["cohort"] == name}
    if not own:
        raise InputError(f"weights: no cohort {name!r}; cohorts: {', '.join(cohorts)}")
    chosen = max(own) if number is None else number
    if chosen not in own:
        raise InputError(
            f"weights: no W of round {chosen}; there are rounds {min(own)} to {max(own)}"
        )
    values = np.array(own[chosen]["weights"], dtype=np.float64)
    if values.ndim == 3:
        values = values.mean(0) if module is None else values[module]
    return list(own[chosen]["clients"]), values


def _last(events: Events, kind: str, keys: Sequence[str]) -> Iterable[Mapping[str, Any]]:
    """Events of a kind, the last one of each address, in order."""
    found = {tuple(e[key] for key in keys): e for e in events if e["event"] == kind}
    return [found[key] for key in sorted(found)]


def _flat(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event's fields, those by arm as `accuracy:memory`."""
    row: dict[str, Any] = {}
    for key, value in event.items():
        if key in ("event", "time", "round"):
            continue
        if isinstance(value, Mapping):
            row |= {f"{key}:{name}": each for name, each in value.items()}
        else:
            row[key] = value
    return row
