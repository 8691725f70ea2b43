"""Whether relevance finds the clients of one task: `python benchmarks/relevance.py demo`.

Clients of three tasks, three each, and one whose texts and answers are random words, run a few
rounds. After each, what every client would take from every other is compared: AUC of same-task
against other-task pairs, garbage left out; and what the garbage client gets. `demo-labels` gives it
the labels of a real task, drawn at random. `real` reads csqa, squad, mnli (as a text task) and one
gsm8k client from `ATLAS_DATA`, on a small causal model:

    python benchmarks/relevance.py demo strategy=simgrad
    python benchmarks/relevance.py real strategy=simgrad backbone.name=MODEL relevance.probe=MODEL
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from atlas.build.federation import assemble
from atlas.config.federation import FederationConfig
from atlas.config.load import load_federation
from atlas.data.clients import load_clients
from atlas.data.files import data_folder
from atlas.federation.clients import ClientData, Example
from atlas.federation.mixing.apply import view_of
from atlas.federation.rounds import run_rounds
from atlas.federation.server import ServerState
from atlas.federation.strategies.relations import relevance
from atlas.ops.metrics import auc
from atlas.runs.events import ignore
from atlas.runs.seeds import generator

COMMON = ["rounds=5", "alone=false", "validate_every=0", "ranks.method=fixed"]
REAL = """
name: relevance
backbone: {max_length: 128}
train: {epochs: null, steps: 4, batch: 8}
data: {source: files, tasks: [csqa, squad, mnli_text], train: 200, validation: 16, test: 16}
tasks:
  mnli_text:
    kind: causal
    text: [premise, hypothesis]
    label: answer
    choices: options
    prompt: "{premise}\\nDoes it follow? {hypothesis}\\nAnswer:\\n"
    path: %s
"""
LABELS = ["yes", "maybe", "no"]
"""mnli's entailment, neutral and contradiction in words."""
GARBAGE = "garbage"
ANSWERS = 8


def main(case: str, overrides: Sequence[str]) -> None:
    """Run one case and print what was found."""
    with tempfile.TemporaryDirectory() as place:
        make, labels = CASES[case]
        config, clients = make(Path(place), [*COMMON, *overrides])
        clients = [*clients, garbage(clients, config.seed, labels)]
        groups = {client.id: client.task.name for client in clients}
        federation = assemble(config, clients)
        matrices: list[Tensor] = []

        def look(state: ServerState) -> bool:
            (cohort,) = state.cohorts.values()
            view = view_of(federation.plan, state, cohort, state.round)
            matrices.append(relevance(view))
            shown = ", ".join(f"{k} {v:.3f}" for k, v in judge(matrices[-1], view.clients, groups))
            print(f"round {state.round}: {shown}", flush=True)
            return True

        run_rounds(federation.plan, federation.state, federation.engine, ignore, look)
        (cohort,) = federation.state.cohorts.values()
        print_rows(matrices[-1], cohort.clients)
        print("refused", federation.state.refused, "failures", federation.state.failures)


def judge(
    weights: Tensor, clients: Sequence[str], groups: dict[str, str]
) -> list[tuple[str, float]]:
    """AUC over pairs of clients that have a group, and the most that one gives to garbage."""
    grouped = [c for c in clients if sum(g == groups[c] for g in groups.values()) > 1]
    where = {client: clients.index(client) for client in clients}
    same, other = [], []
    for one in grouped:
        for two in grouped:
            if one != two:
                found = same if groups[one] == groups[two] else other
                found.append(float(weights[where[one], where[two]]))
    given = [float(weights[where[client], where[GARBAGE]]) for client in grouped]
    limit = 0.2 / (len(clients) - 1)
    return [("AUC", auc(same, other)), ("most to garbage", max(given)), ("allowed", limit)]


def print_rows(weights: Tensor, clients: Sequence[str]) -> None:
    """The matrix, a line per client."""
    print("learns from".ljust(14) + " ".join(client[-8:].rjust(8) for client in clients))
    for client, row in zip(clients, weights.tolist(), strict=True):
        print(client.ljust(14) + " ".join(f"{share:8.3f}" for share in row))


def demo_case(place: Path, overrides: list[str]) -> tuple[FederationConfig, list[ClientData]]:
    """The synthetic demo."""
    del place
    config = load_federation("demo", overrides)
    return config, load_clients(config)


def real_case(place: Path, overrides: list[str]) -> tuple[FederationConfig, list[ClientData]]:
    """Three causal tasks with three clients each, and one client of gsm8k."""
    for split in ("train", "test"):
        rows = (data_folder(None) / "mnli" / f"{split}.jsonl").read_text("utf-8").splitlines()
        records = [json.loads(row) for row in rows]
        told = [{**r, "answer": LABELS[r["label"]], "options": LABELS} for r in records]
        text = "".join(json.dumps(record) + "\n" for record in told)
        (place / f"{split}.jsonl").write_text(text, "utf-8")
    file = place / "relevance.yaml"
    file.write_text(REAL % place, "utf-8")
    config = load_federation(str(file), overrides)
    alone = ["data.tasks=[gsm8k]", "data.clients_per_task=1"]
    lone = load_clients(load_federation(str(file), [*overrides, *alone]))
    return config, [*load_clients(config), *lone]


CASES = {"demo": (demo_case, ANSWERS), "demo-labels": (demo_case, 0), "real": (real_case, 0)}
"""Clients of each case, and how many labels of its own a garbage client has; 0: its task's."""


def garbage(clients: Sequence[ClientData], seed: int, own_labels: int) -> ClientData:
    """A client whose texts and answers are words of everybody's, drawn at random."""
    like, draw = clients[0], generator(seed, "benchmark", GARBAGE)
    texts = [t for c in clients for e in c.train for t in (*e.texts, e.answer)]
    words = sorted({word for text in texts for word in text.split()})

    def some(count: int) -> str:
        return " ".join(words[i] for i in draw.integers(len(words), size=max(1, count)))

    labels = tuple(words[i] for i in draw.permutation(len(words))[:own_labels])
    task = replace(like.task, name=GARBAGE, choices="", labels=labels or like.task.labels)

    def spoilt(example: Example) -> Example:
        junk = tuple(some(len(text.split())) for text in example.texts)
        if task.kind == "classification":
            return Example(junk, int(draw.integers(len(task.labels))))
        return Example(junk, -1, some(len(example.answer.split())))

    splits = {s: tuple(map(spoilt, getattr(like, s))) for s in ("train", "validation", "test")}
    return replace(like, id=GARBAGE, task=task, group=GARBAGE, **splits)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
