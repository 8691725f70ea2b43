"""A newcomer joins a finished run: fingerprinted, placed, given a first adapter.

Nobody else trains. What the run's clients sent before its first round, and the adapters they ended
with, are all that is needed of them. Beside it the newcomer is trained alone, to be compared with.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atlas.build.federation import Federation, assemble
from atlas.build.models import open_backbone, text_limits
from atlas.config.federation import FederationConfig
from atlas.config.plan import RankSettings
from atlas.data.tasks import task_registry
from atlas.federation.adapters.adapter import Adapter
from atlas.federation.adapters.cohort import Cohort, initial_cohort
from atlas.federation.clients import ClientData
from atlas.federation.fingerprints.compare import Prints, Sketches, compare_prints
from atlas.federation.newcomer import Place, find_place, first_adapter
from atlas.federation.prepare import ask_prints
from atlas.federation.rounds import run_rounds
from atlas.federation.server import Server
from atlas.federation.training.evaluate import Scores, majority_scores
from atlas.jobs.federation.finish import closing_server, reasons_of, tested_scores
from atlas.jobs.federation.plan import planned_clusters
from atlas.jobs.join.finished_run import (
    FinishedRun,
    Joined,
    Norms,
    check_layers,
    final_adapter,
    open_finished,
    planned_crowd,
    taken_ids,
    write_join,
)
from atlas.jobs.join.newcomer import (
    Newcomer,
    choose_id,
    choose_task,
    newcomer_config,
    read_newcomer,
)
from atlas.jobs.runner import recorded_threads, use_threads
from atlas.runs.events import Observe, Progress, ignore
from atlas.runs.folder import RunFolder


def train_alone(
    config: FederationConfig, data: ClientData, watch: Observe, progress: Progress | None
) -> Scores:
    """Test scores of training alone from the shared start, with what a client of the run had.

    Args:
        config: The run's settings, as they hold for this client.
        data: The client.
        watch: Receives the events of the rounds.
        progress: Called with (what, done, total) during long work.
    """
    # A shadow of somebody who is alone would only be trained twice.
    changes = {"strategy": "local", "keep_best": False, "alone": False, "ranks": RankSettings()}
    lonely = assemble(config.model_copy(update=changes), [data], progress)
    watch("started", {"rounds": config.rounds, "after": 0})
    run_rounds(lonely.plan, lonely.state, lonely.engine, watch, lambda state: True)
    if not lonely.state.examples:
        reasons = reasons_of(lonely.state)
        raise RuntimeError(f"training alone failed (--no-solo skips it): {reasons}")
    return score_one(lonely)


def score_one(federation: Federation) -> Scores:
    """Test scores of a federation's only client."""
    (scores,) = tested_scores(federation, closing_server(federation, ignore), "final").values()
    return scores


@dataclass(frozen=True)
class _Guest:
    """The newcomer: its settings, its data, and itself as a federation at the shared start."""

    config: FederationConfig
    data: ClientData
    federation: Federation
    warnings: list[str]


@dataclass(frozen=True)
class _Start:
    """What the newcomer is given: its place, and a first adapter from the cohort there."""

    sketches: Sketches
    prints: Prints
    place: Place
    cohort: Cohort
    adapter: Adapter


def join_run(
    folder: RunFolder,
    asked: Newcomer,
    *,
    solo: bool = True,
    watch: Observe | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Let a newcomer join a finished run.

    Args:
        folder: The run; locked meanwhile.
        asked: Who joins, with which data.
        solo: Whether the newcomer also trains alone, to be compared with.
        watch: Receives the events of that training.
        progress: Called with (what, done, total) during long work.

    Returns:
        What was found, as written to `joins/<id>.json`.

    Raises:
        InputError: If the run cannot be joined, or the newcomer's file or id will not do.
    """
    began = time.perf_counter()
    with folder.lock():
        run = open_finished(folder)
        use_threads(recorded_threads(folder))
        guest = _receive(folder, run, asked, progress)
        start = _give_start(folder, run, guest)
        test = _score_start(guest, start)
        alone = None
        if solo:
            alone = train_alone(guest.config, guest.data, watch or ignore, progress)["score"]
        record = _describe(guest, start, test["score"], alone)
        record["seconds"] = round(time.perf_counter() - began, 3)
        write_join(folder, guest.data.id, _joined(run, guest, start, test, record))
    return record


def _receive(
    folder: RunFolder, run: FinishedRun, asked: Newcomer, progress: Progress | None
) -> _Guest:
    client = choose_id(asked, taken_ids(folder, run.adapters))
    known = {**task_registry(run.config.tasks), **run.tasks}
    task = choose_task(asked, run.tasks, known)
    config = newcomer_config(run.config, asked, client, task)
    data, warnings = read_newcomer(config, run.config, task)
    # It is only fingerprinted and tested, so what is held is the one arm it needs.
    plain = config.model_copy(update={"keep_best": False, "alone": False, "ranks": RankSettings()})
    return _Guest(config, data, assemble(plain, [data], progress), warnings)


def _give_start(folder: RunFolder, run: FinishedRun, guest: _Guest) -> _Start:
    """Fingerprint the newcomer, find its place and mix its first adapter."""
    client, config = guest.data.id, guest.config
    crowd = planned_crowd(run, folder)
    sketches, norms = _fingerprint(guest)
    check_layers(folder, _cohort(crowd).clients, norms)
    prints = _compare(crowd, guest, sketches)
    clusters = planned_clusters(crowd)
    labels = clusters and {c: clusters["labels"][c] for c in prints.clients if c != client}
    kin = crowd.state.planned[crowd.config.backbone.name].kin_by(labels or {})
    place = find_place(client, prints, labels, config.relation, kin)
    held = guest.federation.groups[0].arms["held"]
    some = next(iter(held.tensors.values()))
    near = [m for m in _cohort(crowd).members if m.id in place.neighbours]
    everybody = [*near, *held.members]
    cohort = initial_cohort(
        held.layout, everybody, config.seed, dtype=some.dtype, device=some.device
    ).put({member.id: final_adapter(run, held.layout, member) for member in near})
    adapter = first_adapter(cohort, client, place.neighbours, heads=run.strategy.heads)
    return _Start(sketches, prints, place, cohort, adapter)


def _fingerprint(guest: _Guest) -> tuple[Sketches, Norms]:
    plan, state = guest.federation.plan, guest.federation.state
    norms: dict[str, Any] = {}

    def note(event: str, fields: Mapping[str, Any]) -> None:
        if event == "fingerprinted":
            norms.update(fields["norms"])

    found = ask_prints(plan, Server(state, guest.federation.engine, note, round=0))
    if not found:
        reasons = [str(entry["reason"]) for entry in (*state.failures, *state.refused)]
        raise RuntimeError(f"the newcomer gave no usable fingerprint: {'; '.join(reasons)}")
    return found[guest.data.id].sketches, norms


def _compare(crowd: Federation, guest: _Guest, sketches: Sketches) -> Prints:
    """The newcomer among the run's clients of the same backbone, in one feature space."""
    planned = crowd.state.planned[crowd.config.backbone.name]
    joint = dict(sorted({**planned.sketches, guest.data.id: sketches}.items()))
    members = (*_cohort(crowd).members, *_cohort(guest.federation).members)
    labels = {member.id: member.labels for member in members}
    plan = guest.federation.plan
    counts = [labels[client] for client in joint]
    return compare_prints(joint, counts, plan.fingerprint, resamples=0, seed=plan.seed)


def _cohort(federation: Federation) -> Cohort:
    """Those with the backbone of the newcomer, which is the run's common one."""
    return federation.state.cohorts[federation.config.backbone.name]


def _score_start(guest: _Guest, start: _Start) -> Scores:
    group = guest.federation.groups[0]
    group.arms["held"] = group.arms["held"].put({guest.data.id: start.adapter})
    return score_one(guest.federation)


def _describe(guest: _Guest, start: _Start, score: float, alone: float | None) -> dict[str, Any]:
    data, place = guest.data, start.place
    majority = majority_scores(data.task, data.train, data.test)["score"]
    return {
        "client": data.id,
        "task": data.task.name,
        "metric": data.task.metric,
        "cluster": place.cluster,
        "affinities": {str(cluster): mean for cluster, mean in place.affinities.items()},
        "neighbours": place.neighbours,
        "examples": {part: len(getattr(data, part)) for part in ("train", "validation", "test")},
        "scores": {"majority": majority, "start": score, "alone": alone},
        "warnings": [*guest.warnings, *start.prints.warnings(), *_warnings(guest, start)],
    }


def _warnings(guest: _Guest, start: _Start) -> Iterator[str]:
    place, task = start.place, guest.data.task
    if place.outsider:
        yield f"{guest.data.id} fits no cluster well; {place.cluster} is the nearest"
    if not place.neighbours:
        yield f"{guest.data.id} has no neighbours; its adapter is the shared start"
        return
    others = [m for m in start.cohort.members if m.id in place.neighbours]
    if task.label_set and all(member.label_set != task.label_set for member in others):
        yield (
            f"no neighbour has the labels {', '.join(task.labels)}; the head is the shared "
            "start's, which knows nothing yet"
        )


def _joined(
    run: FinishedRun, guest: _Guest, start: _Start, test: Scores, record: Mapping[str, object]
) -> Joined:
    card = {
        "client": guest.data.id,
        "strategy": f"{run.strategy.name}, joined after its last round",
        "neighbours": start.place.neighbours,
        "test": dict(sorted(test.items())),
    }
    return Joined(
        record=record,
        sketches=start.sketches,
        adapter=start.adapter,
        layout=start.cohort.layout,
        backbone=open_backbone(guest.config, guest.config.backbone.name),
        task=guest.data.task,
        limits=text_limits(guest.config).of(guest.data.task),
        card=card,
    )
