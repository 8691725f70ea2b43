"""Factors in a common gauge, against a loop over clients in numpy and float64."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import torch

from atlas.bench.planted import rotated_copies
from atlas.ops.graph.sparse_rows import SharedRows, tidy
from atlas.ops.lowrank import gauge as common
from atlas.ops.lowrank.factors import Layer, delta
from atlas.ops.lowrank.gauge import common_gauge, find_turns, gauge_residuals, joint_factors
from atlas.ops.lowrank.mixing import mix_factors, mix_product, mix_rotated
from atlas.ops.lowrank.mixing_sparse import mix_rotated_sparse
from tests.ops.lowrank.test_mixing import make_cohort, random_weights

MANY = [2, 5, 3, 4, 1, 5] * 5
SIZES = pytest.mark.parametrize("ranks", [[3, 3], [2, 5], MANY], ids=["pair", "unequal", "many"])


def naive_reference(a, b, ranks, scales, shares):
    """Generalised Procrustes of lists of factors, one client after another."""
    count = len(shares)
    in_a = sum(shares[i] * np.sum(a[i] ** 2) for i in range(count))
    in_b = sum(shares[i] * np.sum((scales[i] * b[i]) ** 2) for i in range(count))
    balance = np.sqrt(in_a / in_b)
    joint = [np.hstack([a[i], balance * scales[i] * b[i].T])[: ranks[i]] for i in range(count)]
    tallest = [i for i in range(count) if ranks[i] == max(ranks)]
    start = max(tallest, key=lambda i: shares[i] * np.linalg.norm(joint[i]))
    reference = joint[start].copy()
    for _ in range(common.SWEEPS):
        total, held = np.zeros_like(reference), np.zeros(len(reference))
        for i in range(count):
            total[: ranks[i]] += shares[i] * (naive_turn(reference, joint[i]) @ joint[i])
            held[: ranks[i]] += shares[i]
        reference = total / held[:, None]
    return reference, balance, joint


def naive_turn(reference, joint):
    # scipy finds R with joint^T R nearest reference^T.
    return scipy.linalg.orthogonal_procrustes(joint.T, reference[: len(joint)].T)[0].T


def naive_mixture(a, b, ranks, scales, row):
    """Every receiver's factors in the common gauge of `row`, cut and turned back."""
    heard = [i for i in range(len(row)) if row[i] > 0]
    reference, balance, _ = naive_reference(
        *([part[i] for i in heard] for part in (a, b, ranks, scales)), [row[i] for i in heard]
    )
    mean_a, mean_b = np.zeros_like(a[0]), np.zeros_like(b[0])
    turns = []
    for i in range(len(row)):
        joint = np.hstack([a[i], balance * scales[i] * b[i].T])[: ranks[i]]
        turns.append(naive_turn(reference, joint))
        mean_a[: ranks[i]] += row[i] * (turns[i] @ a[i][: ranks[i]])
        mean_b[:, : ranks[i]] += row[i] * scales[i] * (b[i][:, : ranks[i]] @ turns[i].T)
    return [
        (turns[i].T @ mean_a[: ranks[i]], mean_b[:, : ranks[i]] @ turns[i] / scales[i])
        for i in range(len(row))
    ]


@SIZES
def test_the_mixture_is_that_of_the_loop(ranks):
    a, b, sizes, scales = make_cohort(ranks)
    weights = random_weights(len(ranks))
    new_a, new_b = mix_rotated(a, b, sizes, scales, weights)
    plain = [part.numpy() for part in (a, b)]
    for k, row in enumerate(weights.tolist()):
        wanted_a, wanted_b = naive_mixture(*plain, ranks, scales.tolist(), row)[k]
        assert np.allclose(new_a[k, : ranks[k]], wanted_a, atol=1e-7, rtol=0)
        assert np.allclose(new_b[k, :, : ranks[k]], wanted_b, atol=1e-7, rtol=0)
        assert not new_a[k, ranks[k] :].any() and not new_b[k, :, ranks[k] :].any()


@SIZES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_turn_changes_no_clients_function(ranks, dtype):
    a, b, sizes, scales = make_cohort(ranks)
    layer = Layer(a.to(dtype), b.to(dtype), sizes, scales)
    found = common_gauge(layer, torch.full((len(ranks),), 1 / len(ranks)).double())
    turns = find_turns(found.reference, joint_factors(layer, found.balance), sizes).to(dtype)
    turned_a, turned_b = turns @ layer.a, layer.b @ turns.mT
    x = torch.randn(7, a.shape[2], generator=torch.Generator().manual_seed(1)).to(dtype)
    before, after = (x @ delta(*f, scales.to(dtype)).mT for f in (layer[:2], (turned_a, turned_b)))
    assert float((before - after).norm() / before.norm()) < (1e-12 if dtype.itemsize > 4 else 1e-5)
    for k, rank in enumerate(ranks):
        unit = turns[k, :rank, :rank].double()
        assert torch.allclose(unit @ unit.T, torch.eye(rank).double(), atol=1e-5)
        assert not turns[k, rank:].any() and not turns[k, :, rank:].any()


@SIZES
def test_turning_brings_every_client_nearer_on_the_whole(ranks):
    a, b, sizes, scales = make_cohort(ranks)
    shares = torch.full((len(ranks),), 1 / len(ranks)).double()
    before, after = gauge_residuals(Layer(a, b, sizes, scales), shares)
    assert len(before) == len(ranks) and float(after.mean()) < float(before.mean())
    assert bool((after <= before + 1e-12).all()), "the best turn is no worse than none"


def relative_error(factors, wanted):
    found = delta(*factors, torch.ones(len(factors[0])).double()).double()
    return float((found - wanted).norm() / wanted.norm())


def test_eight_rotated_and_reflected_copies_average_to_themselves():
    a, b, ranks, scales = rotated_copies(8, 6, (48, 40), 0)
    weights = torch.full((8, 8), 1 / 8).double()
    wanted = (b[0].double() @ a[0].double()).expand(8, -1, -1)
    assert relative_error(mix_rotated(a, b, ranks, scales, weights), wanted) < 1e-5
    assert relative_error(mix_factors(a, b, ranks, scales, weights), wanted) > 0.5
    before, after = gauge_residuals(Layer(a, b, ranks, scales), weights[0])
    assert float(before.mean()) > 0.5 and float(after.max()) < 1e-5


def test_without_reflections_half_of_the_copies_would_stay_apart():
    a, b, ranks, scales = rotated_copies(8, 6, (48, 40), 0)
    joint = joint_factors(Layer(a, b, ranks, scales), torch.tensor(1.0).double())
    turns = find_turns(joint[0], joint, ranks)
    assert sorted(torch.linalg.det(turns).round().int().tolist()) == [-1] * 4 + [1] * 4


def test_the_order_of_clients_is_irrelevant():
    a, b, sizes, scales = make_cohort(MANY)
    weights = random_weights(len(MANY))
    order = torch.randperm(len(MANY), generator=torch.Generator().manual_seed(4))
    one = mix_rotated(a, b, sizes, scales, weights)
    shuffled = a[order], b[order], sizes[order], scales[order], weights[order][:, order]
    for here, there in zip(one, mix_rotated(*shuffled), strict=True):
        assert torch.allclose(here[order], there, atol=1e-8)


def test_a_gauge_of_ones_own_does_not_count_at_equal_ranks():
    a, b, sizes, scales = make_cohort([4] * 6)
    weights = random_weights(6)
    turn = torch.linalg.qr(torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(2)))[0]
    turned = turn.double() @ a[:, :4], b[:, :, :4] @ turn.double().mT
    one = delta(*mix_rotated(a, b, sizes, scales, weights), scales)
    two = delta(*mix_rotated(*turned, sizes, scales, weights), scales)
    assert torch.allclose(one, two, atol=1e-6)
    plain = [delta(*mix_factors(*f, sizes, scales, weights), scales) for f in ((a, b), turned)]
    assert not torch.allclose(*plain, atol=0.1)


def test_factors_that_agree_already_are_mixed_as_they_are():
    a, b, sizes, scales = make_cohort([3, 3, 3])
    a, b = a[:1] + 1e-3 * a, b[:1] + 1e-3 * b
    weights = random_weights(3)
    found = delta(*mix_rotated(a, b, sizes, scales, weights), scales)
    wanted = delta(*mix_factors(a, b, sizes, scales, weights), scales)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5, "of second order in the gap"


def test_near_the_identity_factors_hardly_move():
    a, b, sizes, scales = make_cohort(MANY)
    near = 1e-6 * random_weights(len(MANY)) + (1 - 1e-6) * torch.eye(len(MANY)).double()
    new_a, new_b = mix_rotated(a, b, sizes, scales, near)
    assert torch.allclose(new_a, a, atol=1e-4) and torch.allclose(new_b, b, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_own_rows_come_back_bit_for_bit(dtype):
    a, b, sizes, scales = make_cohort([3, 7, 5])
    weights = random_weights(3)
    weights[1] = torch.tensor([0.0, 1, 0])
    new_a, new_b = mix_rotated(a.to(dtype), b.to(dtype), sizes, scales, weights)
    assert torch.equal(new_a[1], a[1].to(dtype)) and torch.equal(new_b[1], b[1].to(dtype))
    assert not torch.equal(new_a[0], a[0].to(dtype)) and new_a.dtype == dtype


@pytest.mark.parametrize("together", [1, 1 << 21])
def test_sparse_rows_beyond_64_clients_are_those_of_the_matrix(together, monkeypatch):
    ranks = [1, 4, 2, 3, 4] * 14
    a, b, sizes, scales = make_cohort(ranks)
    rows = random_weights(len(ranks))[:3] * (torch.arange(len(ranks)) % 4 > 0)
    rows /= rows.sum(1, keepdim=True)
    which = np.arange(len(ranks)) % 3
    wanted = mix_rotated(a, b, sizes, scales, rows[torch.from_numpy(which)])
    monkeypatch.setattr(common, "TOGETHER", together)
    weights = SharedRows(tidy(scipy.sparse.csr_array(rows.numpy())), which)
    found = mix_rotated_sparse(a, b, sizes, scales, weights)
    for one, two in zip(found, wanted, strict=True):
        assert torch.allclose(one, two, atol=1e-8)


@pytest.mark.parametrize("empty", ["a", "b", "both"])
def test_where_factors_say_nothing_nothing_is_turned(empty):
    a, b, sizes, scales = make_cohort([3, 3, 2])
    a = torch.zeros_like(a) if empty != "b" else a
    b = torch.zeros_like(b) if empty != "a" else b
    new_a, new_b = mix_rotated(a, b, sizes, scales, random_weights(3))
    assert bool(new_a.isfinite().all()) and bool(new_b.isfinite().all())
    assert not delta(new_a, new_b, scales).any()
    before, after = gauge_residuals(Layer(a, b, sizes, scales), random_weights(3)[0])
    assert bool(before.isfinite().all()) and bool(after.isfinite().all())


def test_the_exact_mixture_is_nearer_after_turning():
    a, b, ranks, scales = rotated_copies(8, 6, (48, 40), 0)
    noise = torch.Generator().manual_seed(3)
    a = a + 0.05 * torch.randn(a.shape, generator=noise)
    weights = random_weights(8)
    exact = delta(*mix_product(a, b, ranks, scales, weights), scales).double()
    assert relative_error(mix_rotated(a, b, ranks, scales, weights), exact) < 0.05
    assert relative_error(mix_factors(a, b, ranks, scales, weights), exact) > 0.4
