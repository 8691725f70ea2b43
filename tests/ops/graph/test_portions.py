"""W cut into portions: together they are W, and none is larger than it may be."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from atlas.ops.graph.portions import divide
from atlas.ops.graph.sparse_rows import SharedRows, group_rows, keeps_own_row, share_rows


def ring(n, shuffled=True):
    """Clients around a circle learn from both neighbours, under names in any order."""
    names = np.random.default_rng(0).permutation(n) if shuffled else np.arange(n)
    dense = np.zeros((n, n))
    for k in range(n):
        for step, share in ((-1, 0.25), (0, 0.5), (1, 0.25)):
            dense[names[k], names[(k + step) % n]] = share
    return share_rows(csr_array(dense))


def rebuilt(work, n):
    """W as the portions tell it, and how often each client was served."""
    dense, served = np.zeros((n, n)), np.zeros(n)
    for k in work.own:
        dense[k, k] = 1.0
        served[k] += 1
    for portion in work.portions:
        rows = portion.rows.toarray()
        for which, place, client in zip(
            portion.which, portion.places, portion.clients, strict=True
        ):
            assert portion.needed[place] == client
            dense[client, portion.needed] = rows[which]
            served[client] += 1
    for heavy in work.heavy:
        for client in heavy.clients:
            dense[client, heavy.mixed] = heavy.weights
            served[client] += 1
    return torch.from_numpy(dense), served


@pytest.mark.parametrize("most", [1, 4, 10, 1000])
def test_portions_make_up_w_and_serve_everybody_once(most):
    n = 60
    groups = group_rows([k % 7 for k in range(n)], torch.arange(1.0, n + 1))
    some = ring(n)
    quiet = SharedRows(some.rows, some.which.copy())
    for weights in (some, groups, quiet):
        work = divide(weights, most)
        found, served = rebuilt(work, n)
        assert torch.equal(found, weights.dense())
        assert (served == 1).all()
        assert all(len(p.needed) <= most or p.rows.shape[0] == 1 for p in work.portions)
        own = np.nonzero(keeps_own_row(weights))[0]
        assert work.own.tolist() == own.tolist()


def test_a_mixture_of_many_or_for_many_is_set_apart():
    weights = group_rows([k % 2 for k in range(40)], torch.ones(40))
    assert len(divide(weights, 39).heavy) == 2
    assert not divide(weights, 40).heavy
    follow = np.zeros((40, 40))
    follow[:, 0] = 1.0  # everybody receives what one client has
    work = divide(share_rows(csr_array(follow)), 20)
    assert [len(heavy.mixed) for heavy in work.heavy] == [1]
    assert work.own.tolist() == [0]


def test_acquaintances_come_together(monkeypatch):
    weights = ring(400)
    near = sum(len(portion.needed) for portion in divide(weights, 40).portions)
    assert near < 1.5 * 400
    monkeypatch.setattr("atlas.ops.graph.portions._by_acquaintance", lambda rows, light, who: light)
    assert sum(len(portion.needed) for portion in divide(weights, 40).portions) > 2 * 400
