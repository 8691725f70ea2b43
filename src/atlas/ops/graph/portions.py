"""W cut into portions that fit into memory, each with all it needs and little that it does not.

Clients that learn from each other come together (the reverse order of Cuthill and McKee), so that
what one portion reads is seldom read for another. A row over more clients than a portion may hold
is set apart: its mixture is added up a part at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from atlas.ops.graph.sparse_rows import Edges, Places, SharedRows, keeps_own_row


@dataclass(frozen=True)
class Portion:
    """Some mixtures with their receivers.

    Attributes:
        needed: The clients that are mixed or receive, in order [u].
        rows: The mixtures' weights over them [k, u].
        which: The mixture of each receiver [c].
        clients: The receivers [c].
    """

    needed: Places
    rows: Edges
    which: Places
    clients: Places

    @property
    def places(self) -> Places:
        """Where the receivers are among those needed [c]."""
        return np.searchsorted(self.needed, self.clients)


@dataclass(frozen=True)
class Heavy:
    """One mixture of many clients, or for many.

    Attributes:
        mixed: Who is in it [e].
        weights: What each counts [e].
        clients: Who receives it [c].
    """

    mixed: Places
    weights: np.ndarray[tuple[int], np.dtype[np.float64]]
    clients: Places


@dataclass(frozen=True)
class MixingWork:
    """All that one W asks for.

    Attributes:
        own: Clients that keep what they have.
        portions: Mixtures of few.
        heavy: Mixtures of many.
    """

    own: Places
    portions: list[Portion]
    heavy: list[Heavy]


def divide(weights: SharedRows, most: int) -> MixingWork:
    """Cut W so that no portion needs more than `most` clients."""
    own = keeps_own_row(weights)
    moving = np.nonzero(~own)[0]
    order = np.argsort(weights.which[moving], kind="stable")
    names, starts = np.unique(weights.which[moving][order], return_index=True)
    receivers = dict(zip(names.tolist(), np.split(moving[order], starts[1:]), strict=True))
    rows, heavy, light = weights.rows, [], []
    for row, clients in receivers.items():
        mixed = slice(rows.indptr[row], rows.indptr[row + 1])
        if mixed.stop - mixed.start + len(clients) > most:
            heavy.append(Heavy(rows.indices[mixed].astype(np.int64), rows.data[mixed], clients))
        else:
            light.append(row)
    portions: list[Portion] = []
    if light:
        waiting = [_by_acquaintance(rows, np.array(light), receivers)]
        while waiting:
            some = waiting.pop()
            portion = _portion(rows, some, receivers)
            if len(portion.needed) <= most or len(some) == 1:
                portions.append(portion)
            else:
                half = len(some) // 2
                waiting += [some[half:], some[:half]]
    return MixingWork(np.nonzero(own)[0], portions, heavy)


def _by_acquaintance(rows: Edges, light: Places, receivers: dict[int, Places]) -> Places:
    """The rows in an order in which those with clients in common are near each other."""
    first = np.array([receivers[row][0] for row in light.tolist()])
    n = rows.shape[1]
    chosen = rows[light].tocoo()
    graph = scipy.sparse.csr_array((chosen.data, (first[chosen.row], chosen.col)), shape=(n, n))
    place = np.empty(n, dtype=np.int64)
    place[scipy.sparse.csgraph.reverse_cuthill_mckee(graph)] = np.arange(n)
    ordered: Places = light[np.argsort(place[first])]
    return ordered


def _portion(rows: Edges, some: Places, receivers: dict[int, Places]) -> Portion:
    groups = [receivers[row] for row in some.tolist()]
    clients = np.concatenate(groups)
    which = np.repeat(np.arange(len(some)), [len(group) for group in groups])
    chosen = rows[some]
    needed = np.unique(np.concatenate([chosen.indices.astype(np.int64), clients]))
    column = np.searchsorted(needed, chosen.indices)
    shape = (len(some), len(needed))
    return Portion(
        needed,
        scipy.sparse.csr_array((chosen.data, column, chosen.indptr), shape=shape),
        which,
        clients,
    )
