"""How often a plan splits clients of one task, and how often it finds planted sub-tasks.

    ATLAS_DATA=... python benchmarks/false_splits.py take --pool DIR    # gradients, once
    python benchmarks/false_splits.py count --pool DIR [--plans 120]    # plans, before and after

Fingerprints cost minutes and plans a second, so gradients are taken once: of groups of six texts of
one class (and, of mnli, one genre), sketched layer by layer. A client is then a draw of such groups
without replacement, dealt to folds, weighed and scaled as `fingerprints.take` does; only a layer's
length is that of its sketch. Every plan deals the texts anew, and both rules see the same clients.
Labels are swapped by negating the labels' part: so do swapped labels at a fresh head, where all
classes are about equally likely.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from atlas.build.federation import build_federation
from atlas.config.load import load_federation
from atlas.config.plan import ClusterSettings, FingerprintSettings
from atlas.engines.local.fingerprint import print_store
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.fingerprints.clusters import Clusters, group_clients
from atlas.federation.fingerprints.compare import Prints, compare_prints
from atlas.federation.fingerprints.take import fold_gradients, join_layers, sketch_layer
from atlas.ops.clustering.clusters import adjusted_rand

TASKS = {"sst2": 3200, "mrpc": 2900, "cola": 3200, "mnli": 1700}
"""Texts taken of each task; of mnli, of each genre."""
GENRES = 5
TOGETHER = 6
"""Texts whose gradients are added up: the smallest piece of a client."""
SETTINGS = FingerprintSettings()
LEAST_DEALT = 0.85
"""Of the texts asked for, clients have to get this share, or the case is not what it is called."""
SEED = 0


def take(task: str, folder: Path) -> None:
    """Take the gradients of one task's texts and keep them, sketched, by groups of texts."""
    genres = ["data.partitions.mnli={method: field, field: genre}"] if task == "mnli" else []
    config = load_federation(
        "glue",
        [
            "strategy=mira",
            f"data.tasks=[{task}]",
            f"data.clients_per_task={GENRES if genres else 1}",
            f"data.train={TASKS[task]}",
            "data.validation=16",
            "data.test=16",
            f"seed={SEED}",
            "threads=1",
            *genres,
        ],
    )
    torch.set_num_threads(1)
    group = build_federation(config).engine.groups[0]
    store = print_store(group, SETTINGS.blocks)
    everyone = torch.ones(len(store.labels), dtype=torch.float64)
    weights = dict.fromkeys(SETTINGS.parts, everyone)
    found: dict[str, list[Tensor]] = {}
    kinds: list[tuple[int, int, int]] = []
    for own, client in enumerate(group.holders):
        stack = stack_cohorts([group.arms["held"].select([client])])
        rows = store.rows(f"{client}/train")
        labels = store.labels[torch.from_numpy(rows)].numpy()
        for label in np.unique(labels):
            alike = rows[labels == label]
            for start in range(0, len(alike), TOGETHER):
                some = alike[start : start + TOGETHER]
                kinds.append((int(label), own, len(some)))
                gradients = fold_gradients(store, stack, some, weights, SETTINGS)
                for (part, layer), gradient in gradients.items():
                    flat = sketch_layer(gradient.flatten(), layer, SETTINGS.sketch, SEED)
                    found.setdefault(f"{part}|{layer}", []).append(flat.float())
        print(f"{task}: {len(kinds)} groups of texts", flush=True)
    tensors = {name: torch.stack(rows) for name, rows in found.items()}
    save_file(tensors, folder / f"{task}.safetensors", {"kinds": json.dumps(kinds)})


@dataclass(frozen=True)
class Pool:
    """One task's texts by groups of six.

    Attributes:
        sketches: By part and layer [groups, width].
        labels: Class of each group's texts.
        genres: Genre of each group's texts; all 0 where there are none.
        sizes: Texts in each group.
    """

    sketches: dict[tuple[str, str], Tensor]
    labels: np.ndarray
    genres: np.ndarray
    sizes: np.ndarray

    @classmethod
    def read(cls, path: Path) -> Pool:
        """What `take` kept."""
        with safe_open(path, "pt") as file:
            kinds = np.array(json.loads(file.metadata()["kinds"]))
            keys = {tuple(name.split("|")): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return cls(keys, *kinds.T)

    def deal(
        self, clients: int, texts: int, draw: np.random.Generator, genre: int | None = None
    ) -> list[np.ndarray]:
        """Groups of each of some clients, none twice; a few texts less if there are not enough."""
        there = np.arange(len(self.sizes)) if genre is None else np.nonzero(self.genres == genre)[0]
        each = min(texts // TOGETHER, len(there) // clients)
        if each * TOGETHER < LEAST_DEALT * texts:
            held = int(self.sizes[there].sum())
            raise SystemExit(f"{held} texts are not enough for {clients} clients of {texts}")
        order = draw.permutation(there)
        return [order[i * each : (i + 1) * each] for i in range(clients)]

    def fingerprint(self, own: np.ndarray, *, swapped: bool = False) -> dict[str, Tensor]:
        """The fingerprint of a client that has these groups."""
        own = own[self.labels[own].argsort(kind="stable")]
        labels = self.labels[own]
        counts = np.bincount(labels, self.sizes[own])
        weight = torch.from_numpy(1 / (counts[labels] * (counts > 0).sum())).float()
        folds = torch.zeros(SETTINGS.folds, len(own))
        folds[torch.arange(len(own)) % SETTINGS.folds, torch.arange(len(own))] = weight
        written, norms = {}, {part: {} for part in SETTINGS.parts}
        for (part, layer), sketches in self.sketches.items():
            sign = -1.0 if swapped and part == "label" else 1.0
            rows = sign * folds @ sketches[own]
            written[part, layer] = list(rows)
            norms[part][layer] = float(rows.sum(0).norm())
        return join_layers(written, norms, SETTINGS)


@dataclass(frozen=True)
class Case:
    """Some clients and what they are.

    Attributes:
        prints: Fingerprints by client.
        kinds: What a client must not be parted from others of.
        labels: Label count of each client.
    """

    prints: dict[str, dict[str, Tensor]]
    kinds: list[str]
    labels: list[int]

    def planned(self, rule: str, seed: int) -> Clusters:
        """Clusters by one rule for splits."""
        names = list(self.prints)

        def examine(some: Sequence[int]) -> Prints:
            chosen = {names[i]: self.prints[names[i]] for i in some}
            counts = [self.labels[i] for i in some]
            return compare_prints(chosen, counts, SETTINGS, resamples=8, seed=seed)

        return group_clients(examine, self.kinds, ClusterSettings(splits=rule), seed)


def make_case(
    pools: dict[str, Pool], kinds: Sequence[Kind], clients: int, texts: int, seed: int
) -> Case:
    """So many clients of every kind, texts dealt by the seed."""
    draw = np.random.default_rng(seed)
    prints, names, labels = {}, [], []
    dealt = {}
    for kind in kinds:
        # Both labellings of a task share its texts: nobody has a text of another's.
        key, pool = (kind.task, kind.genre), pools[kind.task]
        wanted = clients * sum((other.task, other.genre) == key for other in kinds)
        if key not in dealt:
            dealt[key] = pool.deal(wanted, texts, draw, kind.genre)
        for number in range(clients):
            own = dealt[key].pop()
            prints[f"{kind.name}-{number}"] = pool.fingerprint(own, swapped=kind.swapped)
            names.append(kind.name)
            labels.append(int(pool.labels.max()) + 1)
    return Case(prints, names, labels)


@dataclass(frozen=True)
class Kind:
    """What clients can be: a task, or a planted part of one."""

    task: str
    genre: int | None = None
    swapped: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        genre = "" if self.genre is None else f"-genre{self.genre}"
        return f"{self.task}{genre}{'-swapped' if self.swapped else ''}"


def parted(found: Clusters, kinds: Sequence[str]) -> list[str]:
    """Kinds whose clients are not all in one cluster."""
    held: dict[str, set[int]] = {}
    for kind, label in zip(kinds, found.labels, strict=True):
        held.setdefault(kind, set()).add(label)
    return [kind for kind, labels in held.items() if len(labels) > 1]


GLUE = [Kind("sst2"), Kind("mrpc"), Kind("cola")]
IID = [*GLUE, Kind("mnli")]
SWAPPED = [Kind("sst2"), Kind("sst2", swapped=True), Kind("mrpc"), Kind("cola")]
PLANTED = {
    "sst2 with swapped labels": SWAPPED,
    "two genres of mnli": [Kind("mnli", 0), Kind("mnli", 1), Kind("sst2"), Kind("mrpc")],
}
TODAY = {
    "sst2, mrpc, cola": GLUE,
    "sst2, mrpc": GLUE[:2],
    "sst2, cola": [GLUE[0], GLUE[2]],
    "mrpc, cola": GLUE[1:],
    "sst2 and swapped": SWAPPED[:2],
}
RULES = ("real", "useful")


def iid_cases(pools: dict[str, Pool], plans: int) -> Iterator[tuple[str, int, Case]]:
    """4, 5 and 8 clients a task, 100 to 400 texts, in turn."""
    sizes = [(clients, texts) for texts in (100, 200, 300, 400) for clients in (4, 5, 8)]
    for seed in range(plans):
        clients, texts = sizes[seed % len(sizes)]
        case = make_case(pools, IID, clients, texts, seed)
        yield f"{clients} clients, {texts} texts", seed, case


def count_false(pools: dict[str, Pool], plans: int, rule: str) -> None:
    """Print how many plans split clients of one task."""
    wrong: dict[str, list[bool]] = {}
    for name, seed, case in iid_cases(pools, plans):
        found = case.planned(rule, seed)
        split = parted(found, case.kinds)
        wrong.setdefault(name, []).append(bool(split))
        if split:
            told = f"k = {found.metrics.k}, ARI {adjusted_rand(found.labels, case.kinds):.2f}"
            print(f"  {rule}: {name}, seed {seed}: {', '.join(split)} split, {told}", flush=True)
        if seed % 10 == 9:
            print(f"  {rule}: {seed + 1} of {plans} plans made", flush=True)
    for name, outcomes in wrong.items():
        print(f"{rule}: {name}: {sum(outcomes)} of {len(outcomes)} split", flush=True)
    total = sum(map(len, wrong.values()))
    print(f"{rule}: {sum(map(sum, wrong.values()))} of {total} plans split an IID task", flush=True)


def count_found(pools: dict[str, Pool], plans: int, rule: str) -> None:
    """Print how many plans find exactly what was planted, and the tasks."""
    for title, cases, sizes in (
        ("planted", PLANTED, [(4, 200), (4, 400)]),
        ("tasks", TODAY, [(3, 200)]),
    ):
        for name, kinds in cases.items():
            for clients, texts in sizes:
                hits = 0
                for seed in range(plans):
                    case = make_case(pools, kinds, clients, texts, 1000 + seed)
                    found = case.planned(rule, seed)
                    hits += adjusted_rand(found.labels, case.kinds) == 1.0
                where = f"{title}: {name}, {clients} clients of each, {texts} texts"
                print(f"{rule}: {where}: Rand 1.0 in {hits} of {plans}", flush=True)


def main() -> None:
    """Take gradients, or count plans."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=["take", "count"])
    parser.add_argument("--pool", type=Path, required=True, help="folder of the gradients")
    parser.add_argument("--plans", type=int, default=120)
    parser.add_argument("--powers", type=int, default=10, help="plans of every planted case")
    parser.add_argument("--rules", nargs="+", default=RULES, choices=RULES)
    told = parser.parse_args()
    if told.what == "take":
        told.pool.mkdir(parents=True, exist_ok=True)
        for task in TASKS:
            take(task, told.pool)
    else:
        pools = {task: Pool.read(told.pool / f"{task}.safetensors") for task in TASKS}
        torch.set_num_threads(1)
        for rule in told.rules:
            if told.powers:
                count_found(pools, told.powers, rule)
            if told.plans:
                count_false(pools, told.plans, rule)


if __name__ == "__main__":
    main()
