"""Made-up clients for the benchmark of the server: adapters and sketches with planted groups."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atlas.config.plan import FingerprintSettings
from atlas.federation.state.disk import Generation, Shelf, Spec
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
class Case:
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


def shelves(folder: Path) -> tuple[Shelf, Shelf]:
    """Where adapters and sketches are."""
    return Shelf(folder / "adapters"), Shelf(folder / "sketches")


def make(case: Case, folder: Path) -> dict[str, Any]:
    """Put made-up clients on disk, and out of the system's cache."""
    adapters, sketches = shelves(folder)
    ids = [f"client-{i:07d}" for i in range(case.clients)]
    modules = [f"module-{i:02d}" for i in range(case.modules)]
    specs = {"ranks": Spec((case.modules,), "int64"), "label_set": Spec((), "int64")}
    for name in modules:
        specs[f"lora_a/{name}"] = Spec((case.rank, case.width))
        specs[f"lora_b/{name}"] = Spec((case.width, case.rank))
    specs["head/classifier.weight"] = Spec((LABELS, case.width))
    specs["head/classifier.bias"] = Spec((LABELS,))
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
    for shelf in (adapters, sketches):
        _drop_from_cache(shelf.latest())
    return {}


def _fill(made: Generation, name: str, case: Case, own: float) -> None:
    """What a task's clients have in common, and `own` times as much that is each client's alone."""
    shape = made.specs[name].shape
    size = int(np.prod(shape))
    common = generator(SEED, "bench", name).standard_normal((TASKS, *shape)).astype(np.float32)
    if name.startswith("lora_a/"):
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
