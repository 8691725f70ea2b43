"""Mixing with sparse rows, against the dense rule in float64."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from atlas.ops.graph.sparse_rows import SharedRows, group_rows, share_rows
from atlas.ops.lowrank import leading, mixing_sparse
from atlas.ops.lowrank.factors import Layer, delta
from atlas.ops.lowrank.mixing import mix_product, mix_rows
from atlas.ops.lowrank.mixing_sparse import mix_linear, mix_sparse, solve
from atlas.ops.lowrank.sources import Recipe

D_IN, D_OUT = 40, 34


def make_layer(ranks, seed=0, d_in=D_IN, d_out=D_OUT, common=0.0):
    """Random factors; `common` times as much of A is the same for all."""
    draw = torch.Generator().manual_seed(seed)
    n, top = len(ranks), max(ranks)
    a = torch.zeros(n, top, d_in, dtype=torch.float64)
    b = torch.zeros(n, d_out, top, dtype=torch.float64)
    shared = torch.randn(top, d_in, generator=draw, dtype=torch.float64)
    for k, rank in enumerate(ranks):
        own = torch.randn(rank, d_in, generator=draw, dtype=torch.float64)
        a[k, :rank] = own + common * shared[:rank]
        b[k, :, :rank] = torch.randn(d_out, rank, generator=draw, dtype=torch.float64)
    sizes = torch.tensor(ranks)
    return a, b, sizes, 16.0 / sizes.to(torch.float64)


def random_weights(n, entries, seed=1):
    draw = np.random.default_rng(seed)
    dense = np.zeros((n, n))
    for k in range(n):
        dense[k, draw.choice(n, entries, replace=False)] = draw.random(entries) + 0.1
        dense[k, k] += 1.0
    return share_rows(csr_array(dense / dense.sum(1, keepdims=True)))


def changes(pair, scales):
    return delta(pair[0].double(), pair[1].double(), scales)


@pytest.mark.parametrize("entries", [2, 4, 8], ids=["thin", "mixed", "dense"])
@pytest.mark.parametrize("ranks", [[4] * 9, [2, 3, 8, 5, 2, 8, 1, 4, 6]], ids=["equal", "unequal"])
def test_sparse_mixing_is_dense_mixing(ranks, entries):
    layer, weights = make_layer(ranks), random_weights(9, entries)
    wanted, found = mix_product(*layer, weights.dense()), mix_sparse(*layer, weights)
    for one, two in zip(wanted, found, strict=True):
        assert torch.allclose(one, two, atol=1e-10, rtol=0)
    assert not torch.allclose(found[0], layer[0], atol=0.1)


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_either_side_of_a_module_may_be_the_smaller(shape):
    layer, weights = make_layer([4] * 7, d_in=shape[0], d_out=shape[1]), random_weights(7, 3)
    wanted, found = mix_product(*layer, weights.dense()), mix_sparse(*layer, weights)
    for one, two in zip(wanted, found, strict=True):
        assert torch.allclose(one, two, atol=1e-10, rtol=0)


def test_factors_close_to_a_common_start_stay_exact():
    """Adapters that share most of A are nearly dependent, which squares make worse."""
    layer, weights = make_layer([4] * 9, common=300.0), random_weights(9, 4)
    wanted = changes(mix_product(*layer, weights.dense()), layer[3])
    found = changes(mix_sparse(*layer, weights), layer[3])
    assert float((wanted - found).norm() / wanted.norm()) < 1e-9


def test_float32_adapters_come_back_as_exact_as_they_are_kept():
    a, b, ranks, scales = make_layer([8] * 20, common=30.0)
    weights = random_weights(20, 3)
    wanted = changes(
        mix_product(a.float().double(), b.float().double(), ranks, scales, weights.dense()), scales
    )
    found = mix_sparse(a.float(), b.float(), ranks, scales, weights)
    assert found[0].dtype == found[1].dtype == torch.float32
    gap = (changes(found, scales) - wanted).flatten(1).norm(dim=1)
    assert bool((gap / wanted.flatten(1).norm(dim=1) < 1e-6).all())


def test_unit_rows_return_factors_bit_for_bit():
    layer = make_layer([2, 5, 3, 4])
    dense = random_weights(4, 2).dense()
    dense[1] = torch.eye(4)[1]
    found = mix_sparse(*layer, share_rows(csr_array(dense.numpy())))
    for new, old in zip(found, layer, strict=False):
        assert torch.equal(new[1], old[1])
        assert not torch.allclose(new[0], old[0], atol=1e-3)


def test_a_row_may_be_another_clients_unit_row():
    layer, dense = make_layer([3, 3, 3]), torch.eye(3, dtype=torch.float64)[[1, 1, 2]]
    found = changes(mix_sparse(*layer, share_rows(csr_array(dense.numpy()))), layer[3])
    wanted = delta(*layer[:2], layer[3])
    assert torch.allclose(found, wanted[[1, 1, 2]], atol=1e-10)


def test_equal_rows_are_solved_once(monkeypatch):
    labels, examples = [0, 1, 0, 1, 0, 1, 0, 0], torch.arange(1.0, 9.0)
    layer, weights = make_layer([3, 5, 4, 2, 3, 5, 1, 8]), group_rows(labels, examples)
    solved, straight = [], mixing_sparse.leading_of_slots

    def counted(rows, *rest):
        solved.append(len(rows))
        return straight(rows, *rest)

    monkeypatch.setattr(mixing_sparse, "leading_of_slots", counted)
    found = mix_sparse(*layer, weights)
    assert sum(solved) == 2
    for one, two in zip(mix_product(*layer, weights.dense()), found, strict=True):
        assert torch.allclose(one, two, atol=1e-10, rtol=0)
    apart = SharedRows(weights.rows[weights.which], np.arange(8))
    solved.clear()
    mix_sparse(*layer, apart)
    assert sum(solved) == 8


def test_batches_do_not_change_the_outcome(monkeypatch):
    layer, weights = make_layer([2, 3, 8, 5, 2, 8, 1, 4, 6]), random_weights(9, 3)
    whole = mix_sparse(*layer, weights)
    monkeypatch.setattr(mixing_sparse, "BATCH", 1)
    assert len(list(solve(Layer(*layer), weights.rows, np.arange(9), Recipe()))) == 9
    for one, two in zip(whole, mix_sparse(*layer, weights), strict=True):
        assert torch.allclose(one, two, atol=1e-11, rtol=0)


def test_consensus_is_a_fixed_point_though_gram_matrices_are_singular():
    a, b, ranks, scales = make_layer([4] * 6)
    a, b = a[:1].expand(6, -1, -1).clone(), b[:1].expand(6, -1, -1).clone()
    new_a, new_b = mix_sparse(a, b, ranks, scales, random_weights(6, 4))
    assert torch.allclose(new_a, a, atol=1e-9)
    assert torch.allclose(new_b, b, atol=1e-9)


def test_a_singular_gram_matrix_has_a_root():
    draw = torch.Generator().manual_seed(0)
    thin = torch.randn(3, 7, 2, generator=draw, dtype=torch.float64)
    gram = torch.cat([thin @ thin.mT, -1e-14 * torch.eye(7).double()[None]])
    root = leading._square_root(gram)
    assert torch.allclose(root @ root.mT, gram, atol=1e-12)


def test_mixtures_of_fewer_dimensions_than_ranks_fill_up_as_dense_ones_do():
    a, b, ranks, scales = make_layer([6, 2, 2, 6, 1])
    b[0] = 0.0
    b[3] = 0.0
    weights = random_weights(5, 2)
    wanted = mix_product(a, b, ranks, scales, weights.dense())
    found = mix_sparse(a, b, ranks, scales, weights)
    assert torch.allclose(changes(found, scales), changes(wanted, scales), atol=1e-10)
    for one, two in zip(wanted, found, strict=True):
        assert torch.allclose(one, two, atol=1e-8)


def test_zero_products_and_zero_factors_are_defined():
    a, b, ranks, scales = make_layer([3] * 4)
    weights = random_weights(4, 2)
    new_a, new_b = mix_sparse(a, torch.zeros_like(b), ranks, scales, weights)
    assert torch.equal(new_a, a)
    assert not new_b.any()
    assert not changes(mix_sparse(torch.zeros_like(a), b, ranks, scales, weights), scales).any()


def test_padding_stays_zero_and_inputs_stay():
    ranks = [2, 5, 3, 4]
    layer = make_layer(ranks)
    before = [value.clone() for value in layer]
    new_a, new_b = mix_sparse(*layer, random_weights(4, 2))
    for k, rank in enumerate(ranks):
        assert not new_a[k, rank:].any()
        assert not new_b[k, :, rank:].any()
    assert all(torch.equal(one, two) for one, two in zip(before, layer, strict=True))


def test_linear_mixtures_equal_dense_ones():
    values = torch.randn(9, 3, 2, generator=torch.Generator().manual_seed(3))
    weights = random_weights(9, 3)
    assert torch.allclose(mix_linear(values, weights), mix_rows(values, weights.dense()))
    still = share_rows(csr_array(np.eye(9)))
    assert torch.equal(mix_linear(values, still), values)
