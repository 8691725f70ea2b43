"""Laws that every strategy's relation keeps, for ours and for those of users.

`check_strategy(MINE)` raises an `AssertionError` that names the law and the size at which it broke.
What mixing, delivery and checkpoints add to a relation has tests of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from atlas.federation.strategies.base import Strategy, View
from atlas.ops.graph.affinity import unit_rows
from atlas.ops.graph.sparse_rows import LARGEST_DENSE, SharedRows

SIZES = (1, 2, 5, 30, LARGEST_DENSE + 6)
"""Numbers of clients at which laws are checked: alone, a pair, a few, many, and sparse rows."""
TOLERANCE = 1e-10


def check_strategy(strategy: Strategy) -> None:
    """Hold a strategy's relation to all laws.

    Raises:
        AssertionError: Names the law that is broken.
    """
    for size in SIZES:
        for law in LAWS:
            why = law(strategy, make_view(size))
            assert not why, f"{strategy.name}, {size} clients, {law.__name__}: {why}"


def make_view(n: int, seed: int = 0) -> View:
    """What a relation may look at, made up: three tasks, unequal data, some hardly known."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 6, generator=draw, dtype=torch.float64)
    features[:, :3] += 4 * torch.eye(3, dtype=torch.float64)[torch.arange(n) % 3]
    features = unit_rows(features)
    if n > 4:
        features[4] = 0.0
    signatures = torch.randn(n, 8, generator=draw, dtype=torch.float64)
    signatures[:, :3] += 2 * torch.eye(3, dtype=torch.float64)[torch.arange(n) % 3]
    if n > 4:
        signatures[3] = 0.0
    norms = torch.rand(n, generator=draw, dtype=torch.float64) + 0.1
    return View(
        clients=tuple(f"client-{i:03}" for i in range(n)),
        examples=torch.randint(5, 90, (n,), generator=draw).to(torch.float64),
        tasks=tuple(f"task-{i % 3}" for i in range(n)),
        round=1,
        features=features,
        clusters=tuple(i % 3 for i in range(n)),
        norms=norms.clone,
        signatures=signatures,
    )


def weights_of(strategy: Strategy, view: View) -> Tensor:
    """W as a matrix, [n, n] or [modules, n, n]."""
    found = strategy.relation(view)
    return found.dense() if isinstance(found, SharedRows) else found


def rows_are_shares(strategy: Strategy, view: View) -> str:
    """Every row of W is finite, nowhere negative, and sums to one."""
    found, n = weights_of(strategy, view), len(view.clients)
    if found.shape[-2:] != (n, n) or found.dim() not in (2, 3):
        return f"W has shape {tuple(found.shape)}, not [{n}, {n}]"
    if not bool(found.isfinite().all()) or bool((found < 0).any()):
        return "W has entries that are negative or not finite"
    gap = float((found.sum(-1) - 1).abs().max())
    return f"a row sums to one only up to {gap:.1e}" if gap > TOLERANCE else ""


def order_is_irrelevant(strategy: Strategy, view: View) -> str:
    """Clients listed in another order get the same rows."""
    order = torch.randperm(len(view.clients), generator=torch.Generator().manual_seed(1))
    shuffled = shuffle(view, order)
    here, there = weights_of(strategy, view), weights_of(strategy, shuffled)
    gap = float((here[..., order, :][..., order] - there).abs().max())
    return f"rows change by {gap:.1e} with the order of clients" if gap > TOLERANCE else ""


def shuffle(view: View, order: Tensor) -> View:
    """The same clients in another order."""
    assert view.features is not None and view.clusters is not None and view.norms is not None
    assert view.signatures is not None
    places, norms = order.tolist(), view.norms()[order]
    return replace(
        view,
        clients=tuple(view.clients[i] for i in places),
        examples=view.examples[order],
        tasks=tuple(view.tasks[i] for i in places),
        features=view.features[order],
        clusters=tuple(view.clusters[i] for i in places),
        norms=norms.clone,
        signatures=view.signatures[order],
    )


def nothing_given_is_changed(strategy: Strategy, view: View) -> str:
    """A relation leaves what it looks at as it was."""
    assert view.features is not None and view.signatures is not None
    given = view.examples, view.features, view.signatures
    before = [value.clone() for value in given]
    weights_of(strategy, view)
    same = all(torch.equal(one, two) for one, two in zip(given, before, strict=True))
    return "" if same else "examples, features or signatures were changed in place"


def the_same_twice(strategy: Strategy, view: View) -> str:
    """Nothing is random that is not addressed, and nothing is remembered."""
    same = torch.equal(weights_of(strategy, view), weights_of(strategy, view))
    return "" if same else "the same view gave another W the second time"


def one_client_keeps_its_own(strategy: Strategy, view: View) -> str:
    """Whoever is alone learns from nobody."""
    if len(view.clients) > 1:
        return ""
    own = torch.allclose(weights_of(strategy, view), torch.ones(1, 1, dtype=torch.float64))
    return "" if own else "a single client does not keep its own adapter"


def what_is_not_sent_is_not_mixed(strategy: Strategy, view: View) -> str:
    """Under a strategy that sends nothing W is I: the server has nothing to mix."""
    if strategy.sends != "nothing":
        return ""
    own = torch.eye(len(view.clients), dtype=torch.float64)
    same = bool((weights_of(strategy, view).to(torch.float64) == own).all())
    return "" if same else "sends is `nothing`, but W is not I"


Law = Callable[[Strategy, View], str]
LAWS: tuple[Law, ...] = (
    rows_are_shares,
    order_is_irrelevant,
    nothing_given_is_changed,
    the_same_twice,
    one_client_keeps_its_own,
    what_is_not_sent_is_not_mixed,
)
"""Each says what is wrong, or nothing."""
