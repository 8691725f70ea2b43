"""Laws of mixing, against dense float64 twins."""

import pytest
import torch

from atlas.ops.lowrank.factors import delta, nearest_gauge
from atlas.ops.lowrank.mixing import MIXERS, check_mixing, mix_product, mix_rows, restrict

D_IN, D_OUT = 14, 11


def make_cohort(ranks, seed=0, alpha=16.0):
    draw = torch.Generator().manual_seed(seed)
    n, top = len(ranks), max(ranks)
    a = torch.zeros(n, top, D_IN, dtype=torch.float64)
    b = torch.zeros(n, D_OUT, top, dtype=torch.float64)
    for k, rank in enumerate(ranks):
        a[k, :rank] = torch.randn(rank, D_IN, generator=draw, dtype=torch.float64)
        b[k, :, :rank] = torch.randn(D_OUT, rank, generator=draw, dtype=torch.float64)
    sizes = torch.tensor(ranks)
    return a, b, sizes, alpha / sizes.to(torch.float64)


def random_weights(n, seed=1):
    draw = torch.Generator().manual_seed(seed)
    weights = torch.rand(n, n, generator=draw, dtype=torch.float64)
    return weights / weights.sum(1, keepdim=True)


def dense(a, b, scales):
    return [float(scales[k]) * (b[k] @ a[k]) for k in range(len(scales))]


def truncated(matrix, rank):
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


@pytest.mark.parametrize("ranks", [[2, 3, 4, 5, 2, 8], [4, 4, 4], [1, 8]])
@pytest.mark.parametrize("space", ["product", "svd"])
def test_product_mixture_is_the_truncated_dense_mixture(ranks, space):
    a, b, sizes, scales = make_cohort(ranks)
    weights = random_weights(len(ranks))
    new = dense(*MIXERS[space](a, b, sizes, scales, weights), scales)
    own = dense(a, b, scales)
    for k, rank in enumerate(ranks):
        wanted = truncated(sum(weights[k, j] * own[j] for j in range(len(ranks))), rank)
        assert torch.allclose(new[k], wanted, atol=1e-10, rtol=0)


def test_padding_stays_zero():
    ranks = [2, 5, 3]
    a, b, sizes, scales = make_cohort(ranks)
    for mix in MIXERS.values():
        new_a, new_b = mix(a, b, sizes, scales, random_weights(3))
        for k, rank in enumerate(ranks):
            assert not new_a[k, rank:].any()
            assert not new_b[k, :, rank:].any()


@pytest.mark.parametrize("space", sorted(MIXERS))
def test_consensus_is_a_fixed_point(space):
    a, b, sizes, scales = make_cohort([4, 4, 4])
    a, b = a[:1].expand(3, -1, -1).clone(), b[:1].expand(3, -1, -1).clone()
    new = dense(*MIXERS[space](a, b, sizes, scales, random_weights(3)), scales)
    for matrix in new:
        assert torch.allclose(matrix, dense(a, b, scales)[0], atol=1e-10, rtol=0)


@pytest.mark.parametrize("space", sorted(MIXERS))
def test_client_order_does_not_matter(space):
    a, b, sizes, scales = make_cohort([2, 5, 3, 4])
    weights = random_weights(4)
    order = torch.tensor([2, 0, 3, 1])
    straight = dense(*MIXERS[space](a, b, sizes, scales, weights), scales)
    shuffled = dense(
        *MIXERS[space](a[order], b[order], sizes[order], scales[order], weights[order][:, order]),
        scales[order],
    )
    for place, k in enumerate(order.tolist()):
        assert torch.allclose(shuffled[place], straight[k], atol=1e-10, rtol=0)


@pytest.mark.parametrize("space", sorted(MIXERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identity_rows_return_factors_bit_for_bit(space, dtype):
    a, b, sizes, scales = make_cohort([2, 5, 3])
    a, b = a.to(dtype), b.to(dtype)
    weights = random_weights(3)
    weights[1] = torch.tensor([0.0, 1.0, 0.0])
    new_a, new_b = MIXERS[space](a, b, sizes, scales, weights)
    assert torch.equal(new_a[1], a[1])
    assert torch.equal(new_b[1], b[1])
    assert not torch.equal(new_a[0], a[0]) or not torch.equal(new_b[0], b[0])


@pytest.mark.parametrize("space", sorted(set(MIXERS) - {"svd"}))
def test_a_small_step_from_identity_moves_factors_little(space):
    a, b, sizes, scales = make_cohort([4, 4, 4])
    b = b * 0.05  # trained adapters: A of ordinary size, B small
    step = 0.001
    weights = (1 - step) * torch.eye(3, dtype=torch.float64) + step / 3
    new_a, new_b = MIXERS[space](a, b, sizes, scales, weights)
    moved = max(float((new_a - a).norm() / a.norm()), float((new_b - b).norm() / b.norm()))
    assert 1e-5 < moved < 10 * step


def test_svd_gauge_alone_jumps():
    """The control: without the gauge, the same small step moves factors by their own size."""
    a, b, sizes, scales = make_cohort([4, 4, 4])
    step = 0.001
    weights = (1 - step) * torch.eye(3, dtype=torch.float64) + step / 3
    raw, _ = MIXERS["svd"](a, b, sizes, scales, weights)
    assert float((raw - a).norm() / a.norm()) > 0.5
    near, _ = mix_product(a, b, sizes, scales, weights)
    assert float((near - a).norm() / a.norm()) < 10 * step


def test_svd_space_differs_from_product_space_in_its_gauge_alone():
    ranks = [2, 5, 3]
    a, b, sizes, scales = make_cohort(ranks)
    weights = random_weights(3)
    svd_a, svd_b = MIXERS["svd"](a, b, sizes, scales, weights)
    product_a, product_b = mix_product(a, b, sizes, scales, weights)
    one, two = delta(svd_a, svd_b, scales), delta(product_a, product_b, scales)
    assert torch.allclose(one, two, atol=1e-10, rtol=0)
    assert not torch.allclose(svd_a, product_a, atol=0.1)
    for k, rank in enumerate(ranks):
        rows, columns = svd_a[k, :rank], svd_b[k, :, :rank]
        assert torch.allclose(rows @ rows.T, torch.eye(rank).double(), atol=1e-10)
        gram = columns.T @ columns
        sizes_of = torch.linalg.svdvals(two[k])[:rank] / scales[k]
        assert torch.allclose(gram, torch.diag(sizes_of**2), atol=1e-9)


def test_b_space_is_exact_for_clients_with_one_a():
    a, b, sizes, scales = make_cohort([4, 4, 4])
    a = a[:1].expand(3, -1, -1).clone()
    weights = random_weights(3)
    new_a, new_b = MIXERS["b"](a, b, sizes, scales, weights)
    assert torch.equal(new_a, a)
    wanted = torch.einsum("kl,lij->kij", weights, delta(a, b, scales))
    assert torch.allclose(delta(new_a, new_b, scales), wanted, atol=1e-10, rtol=0)


def test_a_slot_of_one_client_is_divided_by_all_in_factors_space():
    a, b, sizes, scales = make_cohort([2, 2, 3])
    equal = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    new_a, new_b = MIXERS["factors"](a, b, sizes, scales, equal)
    assert torch.allclose(new_a[2, 2], a[2, 2] / 3, atol=1e-12)
    assert torch.allclose(new_b[2, :, 2], b[2, :, 2] / 3, atol=1e-12)


def test_gauge_fills_spare_rows_with_the_clients_own():
    a, b, _, _ = make_cohort([6])
    product = b[0, :, :2] @ a[0, :2]  # rank 2, held by a client of rank 6
    u, s, vh = torch.linalg.svd(product, full_matrices=False)
    new_a, new_b = nearest_gauge(u[:, :6], s[:6], vh[:6].T, a[0])
    assert torch.allclose(new_b @ new_a, product, atol=1e-10)
    assert torch.allclose(new_a, a[0], atol=1e-9)


def test_gauge_stays_bounded_when_row_spaces_are_orthogonal():
    eye = torch.eye(D_IN, dtype=torch.float64)
    u, s = torch.eye(D_OUT, dtype=torch.float64)[:, :2], torch.ones(2, dtype=torch.float64)
    new_a, new_b = nearest_gauge(u, s, eye[:, 4:6], eye[:2])
    assert torch.allclose(new_b @ new_a, u @ eye[:, 4:6].T, atol=1e-10)
    assert float(new_b.abs().max()) <= 2.0 + 1e-9


def test_zero_products_and_zero_factors_are_defined():
    a, b, sizes, scales = make_cohort([3, 3])
    new_a, new_b = mix_product(a, torch.zeros_like(b), sizes, scales, random_weights(2))
    assert torch.equal(new_a, a)
    assert not new_b.any()
    new = dense(*mix_product(torch.zeros_like(a), b, sizes, scales, random_weights(2)), scales)
    assert not torch.stack(new).any()


def test_inputs_are_not_changed():
    a, b, sizes, scales = make_cohort([2, 4])
    before = a.clone(), b.clone()
    for mix in MIXERS.values():
        mix(a, b, sizes, scales, random_weights(2))
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_factor_mixture_differs_from_product_mixture():
    a, b, sizes, scales = make_cohort([4, 4, 4])
    weights = random_weights(3)
    product = delta(*mix_product(a, b, sizes, scales, weights), scales)
    factors = delta(*MIXERS["factors"](a, b, sizes, scales, weights), scales)
    assert float((product - factors).norm() / product.norm()) > 0.1


def test_rows_mix_like_a_double_loop():
    values = torch.randn(4, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    weights = random_weights(4)
    mixed = mix_rows(values, weights)
    for k in range(4):
        wanted = torch.zeros(3, 2, dtype=torch.float64)
        for j in range(4):
            wanted += weights[k, j] * values[j]
        assert torch.allclose(mixed[k], wanted, atol=1e-12)


def test_restrict_renormalises_and_keeps_lonely_clients():
    weights = random_weights(3)
    kept = restrict(weights, torch.tensor([True, False, True]))
    assert torch.allclose(kept.sum(1), torch.ones(3, dtype=torch.float64))
    assert not kept[:, 1].any()
    lonely = restrict(torch.eye(3, dtype=torch.float64), torch.tensor([True, False, True]))
    assert torch.equal(lonely, torch.eye(3, dtype=torch.float64))
    assert torch.equal(restrict(weights, torch.ones(3, dtype=torch.bool)), weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(2, 3), "square"),
        (torch.tensor([[float("nan"), 1.0], [0.0, 1.0]]), "finite"),
        (torch.tensor([[2.0, -1.0], [0.0, 1.0]]), "negative"),
        (torch.tensor([[0.5, 0.4], [0.0, 1.0]]), "sum to one"),
    ],
)
def test_bad_mixing_matrices_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        check_mixing(weights.to(torch.float64))
