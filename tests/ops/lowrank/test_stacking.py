"""Exact mixtures by stacking, and the error of the others, against dense float64 twins."""

import pytest
import torch

from atlas.ops.lowrank.factors import Layer, delta, factor_dense, squared_norms
from atlas.ops.lowrank.mixing import MIXERS, mixture_error, stack_factors
from tests.ops.lowrank.test_mixing import make_cohort, random_weights

RANKS = [2, 5, 3, 4]
ALPHA = 16.0


def dense_mixture(a, b, scales, weights):
    own = delta(a, b, scales)
    return torch.stack(
        [sum(weights[k, j] * own[j] for j in range(len(own))) for k in range(len(own))]
    )


@pytest.mark.parametrize("ranks", [RANKS, [3, 3, 3], [8, 8, 8]])
def test_stacked_factors_are_the_dense_mixture(ranks):
    a, b, sizes, scales = make_cohort(ranks)
    weights = random_weights(len(ranks))
    new_a, new_b, new_ranks = stack_factors(a, b, sizes, scales, weights)
    assert new_ranks.tolist() == [sum(ranks)] * len(ranks)
    found = delta(new_a, new_b, ALPHA / new_ranks.double())
    assert torch.allclose(found, dense_mixture(a, b, scales, weights), atol=1e-10, rtol=0)
    # Rows of A are everybody's own, one after another.
    rows = torch.cat([a[j, :rank] for j, rank in enumerate(ranks)])
    assert all(torch.equal(new_a[k], rows) for k in range(len(ranks)))


def test_who_has_no_weight_is_not_stacked():
    a, b, sizes, scales = make_cohort(RANKS)
    weights = random_weights(4)
    weights[:, 1] = 0
    weights /= weights.sum(1, keepdim=True)
    weights[2] = torch.tensor([0.0, 0, 1, 0])
    new_a, new_b, new_ranks = stack_factors(a, b, sizes, scales, weights)
    assert new_ranks.tolist() == [9, 9, 3, 9]
    found = delta(new_a, new_b, ALPHA / new_ranks.double())
    assert torch.allclose(found, dense_mixture(a, b, scales, weights), atol=1e-10, rtol=0)
    assert not new_a[2, 3:].any() and not new_b[2, :, 3:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_own_rows_come_back_bit_for_bit(dtype):
    a, b, sizes, scales = make_cohort([3, 7, 5])
    a, b = a.to(dtype), b.to(dtype)
    before = a.clone(), b.clone()
    new_a, new_b, new_ranks = stack_factors(a, b, sizes, scales, torch.eye(3).double())
    assert torch.equal(new_ranks, sizes)
    assert torch.equal(new_a, a) and torch.equal(new_b, b)
    assert new_a.dtype == dtype
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])


def mixed_layer(space, layer, weights):
    if space == "stack":
        a, b, ranks = stack_factors(*layer, weights)
        return Layer(a, b, ranks, ALPHA / ranks.double())
    return Layer(*MIXERS[space](*layer, weights), layer.ranks, layer.scales)


def naive_error(trained, mixed, weights):
    """Dense matrices of all layers, client by client."""
    per_layer = weights if weights.dim() == 3 else [weights] * len(trained)
    found = []
    for k in range(len(trained[0].ranks)):
        gap = size = 0.0
        for before, after, rows in zip(trained, mixed, per_layer, strict=True):
            exact = dense_mixture(before.a.double(), before.b.double(), before.scales, rows)[k]
            change = float(after.scales[k]) * (after.b[k].double() @ after.a[k].double())
            gap += float((change - exact).square().sum())
            size += float(exact.square().sum())
        found.append((gap / size) ** 0.5)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("space", ["stack", *sorted(MIXERS)])
@pytest.mark.parametrize("per_layer", [False, True])
def test_errors_equal_those_of_dense_matrices(space, per_layer):
    trained = [Layer(*make_cohort(RANKS, seed)) for seed in (0, 1)]
    weights = random_weights(4)
    if per_layer:
        weights = torch.stack([weights, random_weights(4, seed=2)])
    each = weights if per_layer else [weights] * 2
    mixed = [mixed_layer(space, *pair) for pair in zip(trained, each, strict=True)]
    found = mixture_error(trained, mixed, weights)
    assert torch.allclose(found, naive_error(trained, mixed, weights), atol=1e-12, rtol=1e-10)
    if space == "stack":
        assert float(found.max()) < 1e-14
    else:
        assert float(found.min()) > 0.05
    if space in ("product", "svd"):
        others = [mixed_layer("factors", *pair) for pair in zip(trained, each, strict=True)]
        assert (found < mixture_error(trained, others, weights)).all(), "the best cut there is"


def test_errors_of_changes_outside_the_span_and_of_float32():
    trained = [Layer(*make_cohort([1, 3, 2], 0))]
    other = [Layer(*make_cohort([2, 1, 3], 9))]
    weights = random_weights(3)
    found = mixture_error(trained, other, weights)
    assert torch.allclose(found, naive_error(trained, other, weights), rtol=1e-10)
    half = [Layer(one.a.float(), one.b.float(), one.ranks, one.scales) for one in trained]
    mixed = [mixed_layer("stack", half[0], weights)]
    rounded = mixture_error(half, mixed, weights)
    assert torch.allclose(rounded, naive_error(half, mixed, weights), rtol=1e-6)
    assert 1e-9 < float(rounded.max()) < 1e-6


def test_no_error_where_the_exact_mixture_is_zero():
    a, b, sizes, scales = make_cohort([3, 3])
    trained = [Layer(a, torch.zeros_like(b), sizes, scales)]
    for mixed in (trained, [Layer(a, b, sizes, scales)]):
        assert mixture_error(trained, mixed, random_weights(2)).tolist() == [0.0, 0.0]


def test_norms_are_those_of_dense_products():
    a, b, _, _ = make_cohort(RANKS)
    wanted = torch.stack([(b[k] @ a[k]).square().sum() for k in range(4)])
    assert torch.allclose(squared_norms(a, b), wanted, rtol=1e-12)
    assert torch.allclose(squared_norms(a[0], b[0]), wanted[0], rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_dense_change_is_factored_to_its_rank(dtype):
    a, b, _, scales = make_cohort([4, 4, 4])
    rounded = delta(a, b, scales).to(dtype)
    change = rounded[0].double() + rounded[1].double()
    new_a, new_b = factor_dense(change, torch.finfo(dtype).eps)
    assert new_a.shape == (8, 14) and new_b.shape == (11, 8)
    scale = float(torch.linalg.matrix_norm(change, 2))  # what rounding of a decomposition goes by
    assert float((new_b @ new_a - change).abs().max()) < 8 * torch.finfo(dtype).eps * scale
    none_a, none_b = factor_dense(torch.zeros(11, 14).double(), 1e-16)
    assert none_a.shape == (1, 14) and not (none_b @ none_a).any()
