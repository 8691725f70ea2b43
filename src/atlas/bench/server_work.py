"""One server at work, in a process of its own: clients are made up, then planned and mixed once.

`python -m atlas.bench.server_work measure FOLDER SPEC` plans and mixes made-up clients, and
`simulate` in place of `measure` relates clients that exist as features alone; SPEC is a
`ServerCase` as JSON. What is found goes to `FOLDER/found.json`.

The made-up clients have adapters and sketches with planted groups. As in a run with
`server.state=disk`, adapters are in a file and sketches in memory; a mixture goes to a file of
what clients hold, a part of them at a time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas.bench.processes import high_water
from atlas.config.plan import ClusterSettings, FingerprintSettings
from atlas.federation import strategies
from atlas.federation.adapters.adapter import Layout, Member, factors_of, is_a, is_head
from atlas.federation.adapters.cohort import Cohort, stacked_shapes
from atlas.federation.batching.backbone import HeadLayer
from atlas.federation.fingerprints.clusters_sampled import SAMPLE
from atlas.federation.fingerprints.planned import plan_cohort
from atlas.federation.mixing.parts import PART_BYTES, PartMixer, parts_of, together
from atlas.federation.state.mapped import DiskCohort, OnDisk
from atlas.federation.strategies.base import STRATEGIES, View
from atlas.ops.clustering.clusters import adjusted_rand, extend_labels
from atlas.ops.graph.affinity import unit_rows
from atlas.ops.graph.sparse_rows import SharedRows, by_acquaintance
from atlas.ops.lowrank.mixing import mix_product
from atlas.runs.files import write_text_atomic
from atlas.runs.process import share_heap
from atlas.runs.seeds import generator

assert strategies.__all__
SEED = 0
TASKS = 8
"""Groups of clients that are planted."""
LABELS = 4
"""Most labels of a task."""
OWN = 2.0
"""How large the noise of a fold is; a whole fingerprint has root of the folds less of it."""
CLIENTS_AT_ONCE = 256
"""Clients made up at a time."""
PARTS = ("text", "label")


@dataclass(frozen=True)
class ServerCase:
    """How many clients, and how large their adapters and sketches are."""

    clients: int
    modules: int
    rank: int
    width: int
    sketch: int

    @property
    def parameters(self) -> int:
        """Of one client's adapter and head."""
        return 2 * self.modules * self.rank * self.width + LABELS * (self.width + 1)

    @property
    def fingerprint(self) -> FingerprintSettings:
        """How clients are compared: as by default, but by the body of the model alone."""
        return FingerprintSettings(sketch=self.sketch, head=False)

    @property
    def bytes(self) -> int:
        """On disk while clients are mixed: what they sent, and what they hold."""
        return 8 * self.clients * self.parameters

    @property
    def layout(self) -> Layout:
        """Square modules and one head layer."""
        modules = tuple(f"module-{i:02d}" for i in range(self.modules))
        head = HeadLayer("classifier", self.width, 0, True, "identity")
        widths = ((self.width, self.width),) * self.modules
        return Layout("bench", modules, widths, (head,), 2.0 * self.rank)

    def members(self) -> tuple[Member, ...]:
        """Every client, with the labels of its task."""
        sets = [tuple(f"{t}-{i}" for i in range(2 + t % (LABELS - 1))) for t in range(TASKS)]
        return tuple(
            Member(f"client-{i:07d}", (self.rank,) * self.modules, sets[int(task)])
            for i, task in enumerate(self.tasks())
        )

    def tasks(self) -> Any:  # noqa: ANN401 - an array of whole numbers
        """The task of every client, by chance."""
        return generator(SEED, "bench", "tasks").integers(0, TASKS, self.clients)


def make_cohort(case: ServerCase) -> DiskCohort:
    """What made-up clients sent, in a file."""
    members = case.members()
    shapes = stacked_shapes(case.layout, members)
    cohort = OnDisk().empty(case.layout, members, shapes, torch.float32, "cpu")
    labels = torch.tensor([member.labels for member in members])
    for name, value in cohort.tensors.items():
        shape = tuple(value.shape[1:])
        for rows, made in _made_up(name, case, shape, own=0.3, common=shape):
            if is_head(name):  # labels that a client lacks are padding
                used = torch.arange(made.shape[1]) < labels[rows, None]
                made *= used.reshape(*used.shape, *[1] * (made.dim() - 2))
            value[rows] = made
            cohort.release()
    return cohort


def make_sketches(case: ServerCase) -> dict[str, dict[str, Tensor]]:
    """What made-up clients told of their data, by client: folds of a task want the same."""
    found: dict[str, dict[str, Tensor]] = {m.id: {} for m in case.members()}
    ids, shape = list(found), (case.fingerprint.folds, case.sketch)
    for name in PARTS:
        for rows, made in _made_up(name, case, shape, own=OWN, common=(1, case.sketch)):
            for client, value in zip(ids[rows], made, strict=True):
                found[client][name] = value.clone()
    return found


def _made_up(
    name: str, case: ServerCase, shape: tuple[int, ...], own: float, common: tuple[int, ...]
) -> Iterator[tuple[slice, Tensor]]:
    """What a task's clients have in common, and `own` times as much that is each client's alone.

    Args:
        name: Of the tensor; one drawn apart from others.
        case: How many clients there are.
        shape: A client's.
        own: How large what is a client's alone is.
        common: Of what a task has in common; of size one where it is the same along that way.
    """
    size = int(np.prod(shape))
    aims = generator(SEED, "bench", name).standard_normal((TASKS, *common)).astype(np.float32)
    if is_a(name):
        aims[1:] = aims[0]  # training moves A little from the start that all share
    tasks = case.tasks()
    for start in range(0, case.clients, CLIENTS_AT_ONCE):
        rows = slice(start, min(case.clients, start + CLIENTS_AT_ONCE))
        draw = generator(SEED, "bench", name, start)
        noise = draw.standard_normal((rows.stop - start, size), dtype=np.float32)
        values = aims[tasks[rows]] + own * noise.reshape(-1, *shape)
        yield rows, torch.from_numpy(values / size**0.5)


CHECKED = 3
"""Clients whose mixture is compared with the exact one."""


def measure(case: ServerCase, folder: Path) -> dict[str, Any]:
    """Plan and mix made-up clients once, by the strategy `atlas`, and then by `fedavg`."""
    del folder
    share_heap()
    trained, sketches = make_cohort(case), make_sketches(case)
    held = trained.apart()
    began, used = time.perf_counter(), time.process_time()
    view, found = plan(case, trained, sketches)
    weights = rows_of("atlas", view)
    planned = time.perf_counter()
    used_plan = time.process_time() - used
    wanted = list(exact_mixtures(trained, weights))
    used = time.process_time()
    mix_seconds = mix(trained, weights, held)
    used_mix = time.process_time() - used
    errors = [_error(held, *one) for one in wanted]
    average = rows_of("fedavg", view)
    return {
        "plan_seconds": planned - began,
        "mix_seconds": mix_seconds,
        "cpu_seconds": used_plan + used_mix,
        "average_seconds": mix(trained, average, held),
        "peak_bytes": high_water(os.getpid()),
        "state_bytes": case.bytes // 2,
        "adapters_per_row": float(np.diff(weights.rows.indptr)[weights.which].mean()),
        "worst_error": max(errors),
        **found,
    }


def rows_of(strategy: str, view: View) -> SharedRows:
    """W of many clients."""
    found = STRATEGIES[strategy].relation(view)
    if not isinstance(found, SharedRows):
        raise TypeError(f"{len(view.clients)} clients are few, and W is a matrix")
    return found


def mix(trained: Cohort, weights: SharedRows, held: Cohort) -> float:
    """Seconds in which every client gets its mixture, as in a round; `held` is written into."""
    began = time.perf_counter()
    mixer = PartMixer(trained, weights, "product", "mix")
    order = together(trained, [weights], trained.clients)
    for some in parts_of({"": trained}, order):
        held.write(some, mixer.mix(some).tensors)
    return time.perf_counter() - began


def plan(
    case: ServerCase, cohort: Cohort, sketches: Mapping[str, dict[str, Tensor]]
) -> tuple[View, dict[str, Any]]:
    """From sketches to what relations look at, by the pieces and settings of a run."""
    tasks = {c: str(task) for c, task in zip(cohort.clients, case.tasks(), strict=True)}
    planned = plan_cohort(sketches, cohort, tasks, case.fingerprint, ClusterSettings(), SEED)
    labels = planned.labels(cohort.clients) or ()
    view = View(
        cohort.clients,
        torch.ones(case.clients, dtype=torch.float64),
        tuple(tasks.values()),
        1,
        planned.features(cohort.clients),
        labels,
    )
    return view, {"clusters": len(set(labels)), "ari": adjusted_rand(labels, view.tasks)}


def simulate(case: ServerCase, folder: Path) -> dict[str, Any]:
    """Group, relate and order clients of whom there are features only; nothing is read."""
    del folder
    torch.set_num_threads(1)
    tasks = case.tasks()
    draw = generator(SEED, "bench", "features")
    common = draw.standard_normal((TASKS, case.fingerprint.dims))
    own = draw.standard_normal((case.clients, case.fingerprint.dims))
    features = unit_rows(torch.from_numpy(common[tasks] + own))
    began = time.perf_counter()
    sample = list(range(SAMPLE))
    labels = extend_labels(features, sample, tasks[:SAMPLE].tolist(), SEED)
    names = (" ",) * case.clients
    weights = rows_of("atlas", View(names, torch.ones(case.clients), names, 1, features, labels))
    size = max(1, PART_BYTES // (4 * case.parameters))
    order = by_acquaintance(weights, np.arange(case.clients), size)
    seconds = time.perf_counter() - began
    parts = np.split(order, range(size, case.clients, size))
    chosen = [weights.rows[weights.which[some]].indices for some in parts]
    read = sum(len(np.union1d(some, rows)) for some, rows in zip(parts, chosen, strict=True))
    return {
        "seconds": seconds,
        "peak_bytes": high_water(os.getpid()),
        "read_per_client": read / case.clients,
    }


Wanted = tuple[str, Tensor]
"""A client, and what the change of its first module should be."""


def exact_mixtures(cohort: Cohort, weights: SharedRows) -> Iterator[Wanted]:
    """What a few clients should have after mixing, by the dense rule in float64."""
    some = generator(SEED, "bench", "checked").choice(len(cohort.clients), CHECKED, replace=False)
    for place in sorted(some.tolist()):
        row = weights.rows[[weights.which[place]]]
        others = np.unique([place, *row.indices])
        a, b, ranks, scales = cohort.select([cohort.clients[k] for k in others]).layer(0)
        dense = torch.eye(len(others), dtype=torch.float64)
        own = int(np.searchsorted(others, place))
        dense[own] = torch.from_numpy(row.toarray()[0, others])
        new_a, new_b = mix_product(a.double(), b.double(), ranks, scales, dense)
        yield cohort.clients[place], new_b[own] @ new_a[own]


def _error(held: Cohort, client: str, wanted: Tensor) -> float:
    """How far a client's change is from what it should be, as a share of that."""
    a, b = factors_of(held.take(client), held.layout.modules[0])
    return float((b.double() @ a.double() - wanted).norm() / wanted.norm())


WORK: Mapping[str, Callable[[ServerCase, Path], dict[str, Any]]] = {
    "measure": measure,
    "simulate": simulate,
}


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    what, folder, spec = arguments
    found = WORK[what](ServerCase(**json.loads(spec)), Path(folder))
    write_text_atomic(Path(folder) / "found.json", json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
