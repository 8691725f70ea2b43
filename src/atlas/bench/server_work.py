"""One server at work, in a process of its own: clients are made up, then planned and mixed once.

`python -m atlas.bench.server_work make FOLDER SPEC` puts made-up clients on a shelf, `measure` in
place of `make` plans and mixes them, and `simulate` relates clients that exist as features alone;
SPEC is a `Case` as JSON. What is found goes to `FOLDER/found.json`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas.bench.processes import high_water
from atlas.bench.server_clients import SEED, TASKS, Case, make, shelves
from atlas.config.plan import ClusterSettings
from atlas.federation.fingerprints.clusters_sampled import SAMPLE
from atlas.federation.large import MOST, mix_shelf
from atlas.federation.planning_large import Crowd, plan_many
from atlas.federation.relations_sparse import sparse_diffusion
from atlas.federation.state.disk import Generation
from atlas.federation.strategies.base import View
from atlas.ops.clustering.clusters import adjusted_rand
from atlas.ops.extend import extend_labels
from atlas.ops.graph.affinity import unit_rows
from atlas.ops.graph.portions import divide
from atlas.ops.graph.sparse_rows import SharedRows
from atlas.ops.lowrank.mixing import mix_product
from atlas.runs.files import write_text_atomic
from atlas.runs.seeds import generator

CHECKED = 3
"""Clients whose mixture is compared with the exact one."""


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Plan and mix the clients of a folder once."""
    adapters, sketches = shelves(folder)
    # Small factorisations gain nothing from threads: each worker has one, and a portion to itself.
    torch.set_num_threads(1)
    began, used = time.perf_counter(), time.process_time()
    weights, found = plan(case, sketches.latest())
    planned, used = time.perf_counter(), time.process_time() - used
    before = list(exact_mixtures(adapters.latest(), weights))
    resumed, idle = time.perf_counter(), time.process_time()
    mixed = mix_shelf(adapters, weights, workers=os.cpu_count() or 1)
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


def plan(case: Case, sketches: Generation) -> tuple[SharedRows, dict[str, Any]]:
    """From sketches to W, by the pieces and settings of the strategy `atlas`."""

    def read(rows: Any) -> Mapping[str, Tensor]:  # noqa: ANN401 - a slice or positions
        return {name: sketches.read(name, rows) for name in sketches.specs}

    tasks = [str(task) for task in case.tasks()]
    crowd = Crowd(sketches.clients, read, case.label_counts(), tasks)
    prints, clusters = plan_many(crowd, case.fingerprint, ClusterSettings(), SEED)
    labels = None if clusters is None else clusters.labels
    examples = torch.ones(case.clients, dtype=torch.float64)
    view = View(sketches.clients, examples, tuple(tasks), 1, prints.features, labels)
    found = {"clusters": len(set(labels or ())), "ari": adjusted_rand(labels or (), tasks)}
    return sparse_diffusion(view), found


def simulate(case: Case, folder: Path) -> dict[str, Any]:
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
        a, b = (held.read(f"{f}/{module}", others).double() for f in ("lora_a", "lora_b"))
        ranks = held.read("ranks", others)[:, 0]
        dense = torch.eye(len(others), dtype=torch.float64)
        place = int(np.searchsorted(others, client))
        dense[place] = torch.from_numpy(row.toarray()[0, others])
        new_a, new_b = mix_product(a, b, ranks, alpha / ranks.double(), dense)
        yield client, module, new_b[place] @ new_a[place]


def _error(mixed: Generation, client: int, module: str, wanted: Tensor) -> float:
    """How far a client's change is from what it should be, as a share of that."""
    a, b = (mixed.read(f"{f}/{module}", [client])[0].double() for f in ("lora_a", "lora_b"))
    return float((b @ a - wanted).norm() / wanted.norm())


WORK: Mapping[str, Callable[[Case, Path], dict[str, Any]]] = {
    "make": make,
    "measure": measure,
    "simulate": simulate,
}


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    what, folder, spec = arguments
    found = WORK[what](Case(**json.loads(spec)), Path(folder))
    write_text_atomic(Path(folder) / "found.json", json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
