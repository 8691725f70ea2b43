"""One server at work, in a process of its own: clients are made up, then planned and mixed once.

`python -m atlas.bench.server_work make FOLDER SPEC` puts made-up clients on disk, `measure` in
place of `make` plans and mixes them, and `simulate` relates clients that exist as features alone;
SPEC is a `ServerCase` as JSON. What is found goes to `FOLDER/found.json`.

The made-up clients have adapters and sketches with planted groups.
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
from atlas.federation.adapters.adapter import factor_names, head_names, is_a
from atlas.federation.fingerprints.clusters_sampled import SAMPLE, SampledPlan, plan_many
from atlas.federation.state.disk import DiskState, Generation, Spec
from atlas.federation.state.disk_mixing import MOST, mix_on_disk
from atlas.federation.strategies.base import View
from atlas.federation.strategies.relations import sparse_diffusion
from atlas.ops.clustering.clusters import adjusted_rand, extend_labels
from atlas.ops.graph.affinity import unit_rows
from atlas.ops.graph.portions import divide
from atlas.ops.graph.sparse_rows import SharedRows
from atlas.ops.lowrank.mixing import mix_product
from atlas.runs.files import write_text_atomic
from atlas.runs.seeds import generator

SEED = 0
TASKS = 8
"""Groups of clients that are planted."""
LABELS = 4
"""Most labels of a task."""
SLAB = 256
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
        """On disk while clients are mixed: the old state, the new one, and the sketches."""
        sketches = len(PARTS) * self.fingerprint.folds * self.sketch
        return 4 * self.clients * (2 * self.parameters + sketches)

    def tasks(self) -> Any:  # noqa: ANN401 - an array of whole numbers
        """The task of every client, by chance."""
        return generator(SEED, "bench", "tasks").integers(0, TASKS, self.clients)

    def label_counts(self) -> list[int]:
        """Two to four labels, by task."""
        return [2 + int(task) % (LABELS - 1) for task in self.tasks()]


def states(folder: Path) -> tuple[DiskState, DiskState]:
    """Where adapters and sketches are."""
    return DiskState(folder / "adapters"), DiskState(folder / "sketches")


def make(case: ServerCase, folder: Path) -> dict[str, Any]:
    """Put made-up clients on disk, and out of the system's cache."""
    adapters, sketches = states(folder)
    ids = [f"client-{i:07d}" for i in range(case.clients)]
    modules = [f"module-{i:02d}" for i in range(case.modules)]
    specs = {"ranks": Spec((case.modules,), "int64"), "label_set": Spec((), "int64")}
    for name in modules:
        a, b = factor_names(name)
        specs[a], specs[b] = Spec((case.rank, case.width)), Spec((case.width, case.rank))
    weight, bias = head_names("classifier")
    specs[weight], specs[bias] = Spec((LABELS, case.width)), Spec((LABELS,))
    facts = {"modules": modules, "alpha": 2.0 * case.rank}
    folds = case.fingerprint.folds
    with adapters.renew(ids, specs, facts) as made:
        made.write("ranks", slice(None), torch.full((case.clients, case.modules), case.rank))
        made.write("label_set", slice(None), torch.from_numpy(case.tasks()))
        for name in [name for name in specs if "/" in name]:
            _fill(made, name, case, own=0.3)
    with sketches.renew(ids, dict.fromkeys(PARTS, Spec((folds, case.sketch))), {}) as made:
        for name in PARTS:
            _fill(made, name, case, own=1.0)
    for disk in (adapters, sketches):
        _drop_from_cache(disk.latest())
    return {}


def _fill(made: Generation, name: str, case: ServerCase, own: float) -> None:
    """What a task's clients have in common, and `own` times as much that is each client's alone."""
    shape = made.specs[name].shape
    size = int(np.prod(shape))
    common = generator(SEED, "bench", name).standard_normal((TASKS, *shape)).astype(np.float32)
    if is_a(name):
        common[1:] = common[0]  # training moves A little from the start that all share
    tasks = case.tasks()
    for start in range(0, case.clients, SLAB):
        rows = slice(start, min(case.clients, start + SLAB))
        draw = generator(SEED, "bench", name, start)
        noise = draw.standard_normal((rows.stop - start, size), dtype=np.float32)
        values = common[tasks[rows]] + own * noise.reshape(-1, *shape)
        made.write(name, rows, torch.from_numpy(values / size**0.5))


def _drop_from_cache(held: Generation) -> None:
    if not hasattr(os, "posix_fadvise"):
        return
    for name in held.specs:
        with held.path(name).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


CHECKED = 3
"""Clients whose mixture is compared with the exact one."""


def measure(case: ServerCase, folder: Path) -> dict[str, Any]:
    """Plan and mix the clients of a folder once."""
    adapters, sketches = states(folder)
    # Small factorisations gain nothing from threads: each worker has one, and a portion to itself.
    torch.set_num_threads(1)
    began, used = time.perf_counter(), time.process_time()
    weights, found = plan(case, sketches.latest())
    planned, used = time.perf_counter(), time.process_time() - used
    before = list(exact_mixtures(adapters.latest(), weights))
    resumed, idle = time.perf_counter(), time.process_time()
    mixed = mix_on_disk(adapters, weights, workers=os.cpu_count() or 1)
    ended = time.perf_counter()
    peak = high_water(os.getpid())
    return {
        "plan_seconds": planned - began,
        "mix_seconds": ended - resumed,
        "cpu_seconds": used + time.process_time() - idle,
        "peak_bytes": peak,
        "state_bytes": mixed.bytes,
        "adapters_per_row": float(np.diff(weights.rows.indptr)[weights.which].mean()),
        "worst_error": max(_error(mixed, *wanted) for wanted in before),
        **found,
    }


def plan(case: ServerCase, sketches: Generation) -> tuple[SharedRows, dict[str, Any]]:
    """From sketches to W, by the pieces and settings of the strategy `atlas`."""

    def read(rows: Any) -> Mapping[str, Tensor]:  # noqa: ANN401 - a slice or positions
        return {name: sketches.read(name, rows) for name in sketches.specs}

    tasks = [str(task) for task in case.tasks()]
    crowd = SampledPlan(sketches.clients, read, case.label_counts(), tasks)
    prints, clusters = plan_many(crowd, case.fingerprint, ClusterSettings(), SEED)
    labels = None if clusters is None else clusters.labels
    examples = torch.ones(case.clients, dtype=torch.float64)
    view = View(sketches.clients, examples, tuple(tasks), 1, prints.features, labels)
    found = {"clusters": len(set(labels or ())), "ari": adjusted_rand(labels or (), tasks)}
    return sparse_diffusion(view), found


def simulate(case: ServerCase, folder: Path) -> dict[str, Any]:
    """Group, relate and portion out clients of whom there are features only; nothing is read."""
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
    view = View(names, torch.ones(case.clients), names, 1, features, labels)
    work = divide(sparse_diffusion(view), MOST)
    seconds = time.perf_counter() - began
    read = sum(len(portion.needed) for portion in work.portions)
    return {
        "seconds": seconds,
        "peak_bytes": high_water(os.getpid()),
        "read_per_client": read / case.clients,
    }


Wanted = tuple[int, str, Tensor]
"""A client, a module, and what its change should be."""


def exact_mixtures(held: Generation, weights: SharedRows) -> Iterator[Wanted]:
    """What a few clients should have after mixing, by the dense rule in float64."""
    some = generator(SEED, "bench", "checked").choice(len(held.clients), CHECKED, replace=False)
    module, alpha = held.facts["modules"][0], float(held.facts["alpha"])
    for client in sorted(some.tolist()):
        row = weights.rows[[weights.which[client]]]
        others = np.unique([client, *row.indices])
        a, b = (held.read(name, others).double() for name in factor_names(module))
        ranks = held.read("ranks", others)[:, 0]
        dense = torch.eye(len(others), dtype=torch.float64)
        place = int(np.searchsorted(others, client))
        dense[place] = torch.from_numpy(row.toarray()[0, others])
        new_a, new_b = mix_product(a, b, ranks, alpha / ranks.double(), dense)
        yield client, module, new_b[place] @ new_a[place]


def _error(mixed: Generation, client: int, module: str, wanted: Tensor) -> float:
    """How far a client's change is from what it should be, as a share of that."""
    a, b = (mixed.read(name, [client])[0].double() for name in factor_names(module))
    return float((b @ a - wanted).norm() / wanted.norm())


WORK: Mapping[str, Callable[[ServerCase, Path], dict[str, Any]]] = {
    "make": make,
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
