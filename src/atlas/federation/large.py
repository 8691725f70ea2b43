"""A server for very many clients: adapters on a shelf, mixed a module and a portion at a time.

What is in memory is a portion's factors, and nothing that grows with the number of clients but W,
ids and ranks. A shelf's adapters have a cohort's names; beside them it holds `ranks`
[n, modules] and `label_set` [n], equal numbers for equal label sets.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from atlas.federation.adapters.cohort import Cohort
from atlas.federation.state.disk import Generation, Shelf, Spec
from atlas.federation.state.disk_mixing import Mixed, ModuleOnShelf, TensorOnShelf
from atlas.ops.clustering.clusters import canonical
from atlas.ops.graph.portions import Work, divide
from atlas.ops.graph.sparse_rows import SharedRows, restrict_groups

MOST = 2048
"""Clients whose factors of one module are in memory at a time, for each worker."""

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


def shelve(shelf: Shelf, cohort: Cohort) -> Generation:
    """Put a cohort on a shelf."""
    layout, members = cohort.layout, cohort.members
    sets = canonical([member.label_set for member in members])
    tensors = {
        **{name: value.detach().cpu() for name, value in cohort.tensors.items()},
        "ranks": torch.tensor([member.ranks for member in members]),
        "label_set": torch.tensor(sets),
    }
    specs = {
        name: Spec(tuple(value.shape[1:]), str(value.dtype).removeprefix("torch."))
        for name, value in tensors.items()
    }
    facts = {"modules": list(layout.modules), "alpha": layout.alpha}
    with shelf.renew(cohort.clients, specs, facts) as made:
        for name, value in tensors.items():
            made.write(name, slice(None), value)
    return shelf.latest()


def mix_shelf(
    shelf: Shelf,
    weights: SharedRows,
    *,
    workers: int = 1,
    most: int = MOST,
    progress: Progress | None = None,
) -> Generation:
    """Apply W to all adapters of a shelf in product space, and to heads within label sets.

    Args:
        shelf: Its last generation is mixed; the mixture becomes the last generation.
        weights: W.
        workers: Portions mixed at the same time.
        most: Clients in memory at a time, for each worker.
        progress: Told after every module and every tensor of the head.
    """
    old = shelf.latest()
    alpha, modules = float(old.facts["alpha"]), list(old.facts["modules"])
    heads = [name for name in old.specs if name.startswith("head/")]
    work = divide(weights, most)
    with (
        shelf.renew(old.clients, old.specs, old.facts) as made,
        ThreadPoolExecutor(workers) as pool,
    ):
        ranks, sets = (old.read(name, slice(None)) for name in ("ranks", "label_set"))
        made.write("ranks", slice(None), ranks)
        made.write("label_set", slice(None), sets)
        total = len(modules) + len(heads)
        for number, module in enumerate(modules):
            one = ModuleOnShelf(old, made, module, ranks[:, number], alpha, most)
            _do(pool, one, work, most)
            if progress:
                progress("mixing", number + 1, total)
        within = divide(restrict_groups(weights, sets.numpy()), most)
        for number, name in enumerate(heads, len(modules)):
            _do(pool, TensorOnShelf(old, made, name, most), within, most)
            if progress:
                progress("mixing", number + 1, total)
    return shelf.latest()


def _do(pool: ThreadPoolExecutor, one: Mixed, work: Work, most: int) -> None:
    own = [work.own[start : start + most] for start in range(0, len(work.own), most)]
    for done in (
        pool.map(one.keep, own),
        pool.map(one.mix, work.portions),
        pool.map(one.mix_many, work.heavy),
    ):
        for _ in done:
            pass  # an error in a worker is raised here
