"""Sparse W: densified, every piece gives what its dense twin gives."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from atlas.ops.graph import affinity
from atlas.ops.graph import sparse_rows as sparse
from atlas.ops.graph.sparse_rows import SharedRows, share_rows
from atlas.ops.lowrank import mixing

N = 9
LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0]


def random_edges(seed=0, keep=0.4):
    draw = np.random.default_rng(seed)
    edges = draw.random((N, N)) * (draw.random((N, N)) < keep)
    np.fill_diagonal(edges, 0.0)
    edges[3] = 0.0  # a client without neighbours
    return edges


def random_weights(seed=0):
    return share_rows(sparse.row_normalise(csr_array(random_edges(seed))))


def dense(edges):
    return torch.from_numpy(edges.toarray())


def test_edges_become_weights_as_they_do_densely():
    edges = random_edges()
    wanted, found = torch.from_numpy(edges), csr_array(edges)
    for name in ("symmetrise", "row_normalise"):
        twin = getattr(affinity, name)(wanted)
        assert torch.allclose(dense(getattr(sparse, name)(found)), twin, atol=1e-15)
        assert not torch.equal(twin, wanted)
    rows = sparse.row_normalise(found)
    for eta in (0.0, 0.3, 1.0):
        twin = affinity.lazy(affinity.row_normalise(wanted), eta)
        assert torch.allclose(dense(sparse.lazy(rows, eta)), twin, atol=1e-15)
    with pytest.raises(ValueError, match="eta is 1.5"):
        sparse.lazy(rows, 1.5)


def test_no_step_is_the_identity_to_the_bit():
    still = sparse.lazy(sparse.row_normalise(csr_array(random_edges())), 0.0)
    assert still.nnz == N
    assert sparse.keeps_own_row(share_rows(still)).all()


def test_equal_rows_are_kept_once():
    edges = np.tile([0.5, 0.25, 0.25, 0.0], (4, 1))
    edges[2] = [0.0, 0.0, 0.0, 1.0]
    found = share_rows(csr_array(edges))
    assert found.rows.shape == (2, 4)
    assert found.which.tolist() == [0, 0, 1, 0]
    assert torch.equal(found.dense(), torch.from_numpy(edges))


def test_group_means_are_one_row_for_each_group():
    examples = torch.arange(1, N + 1, dtype=torch.float64)
    examples[7] = 0.0  # alone in its group, and without examples
    found = sparse.group_rows(LABELS, examples)
    assert torch.allclose(found.dense(), affinity.group_shares(LABELS, examples), atol=1e-15)
    assert found.rows.shape[0] == len(set(LABELS))
    assert found.rows.nnz == N


def test_columns_are_left_out_as_they_are_densely():
    weights = random_weights()
    for seed in range(4):
        allowed = np.random.default_rng(seed).random(N) < 0.6
        found = sparse.restrict_columns(weights, allowed)
        twin = mixing.restrict(weights.dense(), torch.from_numpy(allowed))
        assert torch.allclose(found.dense(), twin, atol=1e-15)
        lost = (weights.dense()[:, ~allowed] > 0).any(1)
        assert torch.equal(found.dense()[~lost], weights.dense()[~lost])
        sparse.check_rows(found)
    nobody = sparse.restrict_columns(weights, np.zeros(N, dtype=bool))
    assert torch.equal(nobody.dense(), torch.eye(N).double())


def test_groups_part_rows_that_were_shared():
    group = np.array(LABELS)
    shared = SharedRows(csr_array(np.full((1, N), 1 / N)), np.zeros(N, dtype=np.int64))
    for weights in (shared, random_weights()):
        found = sparse.restrict_groups(weights, group)
        same = torch.from_numpy(group[:, None] == group)
        assert torch.allclose(found.dense(), mixing.restrict(weights.dense(), same), atol=1e-15)
    assert sparse.restrict_groups(shared, group).rows.shape[0] == len(set(LABELS))


def test_some_may_keep_their_own():
    weights, own = random_weights(), np.arange(N) % 3 == 0
    found = sparse.keep_own(weights, own)
    assert torch.equal(found.dense()[~own], weights.dense()[~own])
    assert torch.equal(found.dense()[own], torch.eye(N).double()[own])
    assert sparse.keeps_own_row(found).tolist() == (own | (np.arange(N) == 3)).tolist()
    assert sparse.keep_own(weights, np.zeros(N, dtype=bool)) is weights


def test_another_clients_unit_row_is_not_ones_own():
    edges = np.eye(3)[[0, 0, 2]]
    found = share_rows(csr_array(edges))
    assert sparse.keeps_own_row(found).tolist() == [True, False, True]
    assert sparse.keeps_own_row(found).tolist() == mixing.is_identity_row(found.dense()).tolist()


def test_sameness_does_not_depend_on_sharing():
    shared = SharedRows(csr_array(np.full((1, 2), 0.5)), np.array([0, 0]))
    apart = SharedRows(csr_array(np.full((2, 2), 0.5)), np.array([0, 1]))
    assert sparse.same_rows(shared, apart)
    assert not sparse.same_rows(shared, share_rows(csr_array(np.eye(2))))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0.5, 0.6], "off by 0.1"),
        ([1.5, -0.5], "negative"),
        ([np.nan, 1.0], "finite"),
    ],
)
def test_what_is_no_mixing_matrix_is_refused(row, words):
    bad = SharedRows(csr_array(np.array([row, [0.0, 1.0]])), np.array([0, 1]))
    with pytest.raises(ValueError, match=words):
        sparse.check_rows(bad)
    with pytest.raises(ValueError, match="3 clients"):
        sparse.check_rows(SharedRows(csr_array(np.eye(2)), np.array([0, 1, 1])))
