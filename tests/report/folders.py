"""Run folders written by hand, in no time: what reports, pages and tables read."""

import json

from atlas.config.load import dump_config, load_config
from atlas.runs.events import EventLog
from atlas.runs.folder import write_summary

TASKS = {"a-1": "apples", "a-2": "apples", "b-1": "bears", "b-2": "bears"}
CLIENTS = list(TASKS)
MODULES = ["encoder.layer.4.attention.self.query", "encoder.layer.5.attention.self.value"]
SCORES = {"a-1": 0.8, "a-2": 0.75, "b-1": 0.6, "b-2": 0.9}
ALONE = {"a-1": 0.7, "a-2": 0.75, "b-1": 0.65, "b-2": 0.8}


def write_events(path, events):
    with EventLog(path) as log:
        for name, fields in events:
            log.log(name, fields)


def before_rounds(tasks=None):
    tasks = tasks or TASKS
    clients = list(tasks)
    labels = [sorted(set(tasks.values())).index(task) for task in tasks.values()]
    near = [[1.0 if a == b else 0.6 if a[0] == b[0] else 0.1 for b in clients] for a in clients]
    tried = [
        {"k": k, "silhouette": 0.5 / k, "davies_bouldin": k, "calinski_harabasz": 9.0, "score": 0.5}
        | {"stability": 1.0, "share": 0.9, "needed": 0.8, "real": True}
        for k in (2, 3)
    ]
    found = {"method": "kmeans", "k": 2, "labels": labels, "silhouette": 0.25, "tried": tried}
    cohorts = {"tiny": {"clients": clients, "modules": MODULES}}
    began = {"rounds": 3, "after": 0, "strategy": "atlas", "tasks": dict(tasks), "cohorts": cohorts}
    yield "started", began
    yield "planned", {
        "round": 0, "cohort": "tiny", "clients": clients, "tasks": list(tasks.values()),
        "parts": {"text": {"reliability": 0.5, "weight": 1.0}}, "explained": 0.9, "warnings": [],
        "points": [[0.1 * n, 0.2 * n] for n in range(len(clients))], "affinity": near,
        "neighbours": near,
        "clusters": found | {"purity": {"mean": 1.0, "weighted": 1.0}, "ari": 1.0},
    }  # fmt: skip
    for n, client in enumerate(clients):
        yield "granted", {
            "round": 0, "client": client, "device": "small" if n % 2 else "large",
            "ranks": [4, 8 * (1 + n % 2)], "budget": 100_000_000 + n, "used": 90_000_000,
            "valid": True, "weights": 70_000_000, "activations": 5_000_000, "complexity": 1.0,
            "importance": [0.2, 0.8], "point": None, "measured": 91_000_000,
        }  # fmt: skip


def one_round(number, tasks=None):
    clients = list(tasks or TASKS)
    count = len(clients)
    yield "round_started", {"round": number, "clients": clients}
    for n, client in enumerate(clients):
        loss = 1.0 / number + 0.1 * n
        yield "fitted", {"round": number, "client": client, "examples": 9, "steps": 2, "loss": loss}
        accept = 1.0 if n else 0.0
        yield "delivered", {"round": number, "client": client, "accept": accept, "pick": 0}
    share = [[1.0 / count] * count for _ in clients]
    yield "mixed", {
        "round": number, "cohort": "tiny", "clients": clients, "weights": share,
        "error": {"mean": 0.1, "worst": 0.2}, "distance": {"trained": 0.3, "mixed": 0.1},
    }  # fmt: skip
    for n, client in enumerate(clients):
        scores = {"score": 0.5 + 0.05 * number + 0.01 * n, "loss": 0.7 - 0.05 * number}
        solo = {"score": 0.5 + 0.02 * number + 0.01 * n, "loss": 0.7 - 0.02 * number}
        told = {"members": {client: scores}, "alone": {client: solo}}
        yield "validated", {"round": number, "client": client, **told}
    yield "round_finished", {"round": number, "seconds": 1.5, "up": 1000, "down": 2000 * number}


def summary_of(tasks=None):
    tasks = tasks or TASKS
    clients = list(tasks)
    scores = dict(zip(clients, SCORES.values(), strict=True))
    alone = dict(zip(clients, ALONE.values(), strict=True))
    gains = [scores[c] - alone[c] for c in clients]
    spread = {"mean": sum(scores.values()) / 4, "spread": 0.1, "worst": 0.6, "clients": scores}
    labels = {c: int(task != next(iter(tasks.values()))) for c, task in tasks.items()}
    return {
        "kind": "federation", "strategy": "atlas", "rounds": 3, "seed": 0, "seconds": 4.5,
        "score": spread, "metrics": dict.fromkeys(clients, "accuracy"), "accuracy": spread,
        "majority": {"clients": dict.fromkeys(clients, 0.5)},
        "loss": {"mean": 0.5, "clients": dict.fromkeys(clients, 0.5)},
        "test_examples": dict.fromkeys(clients, 100),
        "alone": {"mean": sum(alone.values()) / 4, "clients": alone},
        "gain": {"mean": sum(gains) / 4, "worst": min(gains)},
        "bytes": {"up": 3000, "down": 12000}
        | {"clients": dict.fromkeys(clients, {"up": 1, "down": 2})},
        "ranks": dict.fromkeys(clients, [4, 8]),
        "clusters": {"k": 2, "silhouette": 0.25, "purity": 1.0, "ari": 1.0, "labels": labels},
        "refused": [], "failures": [], "adapters_sha256": "0" * 64,
    }  # fmt: skip


def make_federation(path, *, rounds=3, finished=True, tasks=None, settings=()):
    """A run folder of four clients and two tasks."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(dump_config(load_config("demo", ["size=quick", *settings])))
    (path / "machine.json").write_text(json.dumps({"threads": 1, "command": "atlas run demo"}))
    events = [*before_rounds(tasks)]
    for number in range(1, rounds + 1):
        events += one_round(number, tasks)
    if finished:
        summary = summary_of(tasks)
        write_summary(path / "summary.json", summary)
        events.append(("finished", {"summary": summary}))
    write_events(path / "events.jsonl", events)
    return path
