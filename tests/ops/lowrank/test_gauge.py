"""The gauge in which mixtures come back: nearest to what a client holds, and of the same size."""

import pytest
import torch

from atlas.ops.lowrank.factors import Layer, nearest_gauge, turned_into
from atlas.ops.lowrank.leading import leading_of_dense, receive
from atlas.ops.lowrank.mixing import mix_product
from tests.ops.lowrank.test_mixing import make_cohort

DRAW = torch.Generator()


@pytest.fixture(autouse=True)
def _draws():
    DRAW.manual_seed(5)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=DRAW)


def projected(u, s, v, a):
    """The nearest A' of all: `a` projected on the row space."""
    left, size, right = torch.linalg.svd(a @ v)
    size = size.clamp_min(0.5 * float(torch.linalg.svdvals(a)[-1]))
    return (left * size) @ right @ v.T, (u * s) @ right.T @ (left / size).T


def product(d_out=9, d_in=12, rank=4):
    u, s, vh = torch.linalg.svd(normal(d_out, d_in), full_matrices=False)
    return u[:, :rank], s[:rank], vh[:rank].T


def test_the_product_is_exact_and_a_keeps_its_gram_matrix():
    u, s, v = product()
    own = normal(4, 12)
    a, b = nearest_gauge(u, s, v, own)
    assert torch.allclose(b @ a, u @ torch.diag(s) @ v.T, atol=1e-12)
    assert torch.allclose(a @ a.T, own @ own.T, atol=1e-11)


def test_no_other_turn_is_nearer():
    _, _, v = product()
    own = normal(4, 12)
    gauge, inverse = turned_into(v, own, torch.tensor(1.0, dtype=torch.float64))
    assert torch.allclose(gauge @ inverse, torch.eye(4, dtype=torch.float64), atol=1e-12)
    nearest = (gauge @ v.T - own).norm()
    for _ in range(300):
        step = 10 ** float(torch.empty(()).uniform_(-3, 0.5, generator=DRAW))
        skew = step * normal(4, 4)
        turn = torch.linalg.matrix_exp(skew - skew.T)
        assert (gauge @ turn @ v.T - own).norm() >= nearest - 1e-12


def test_the_own_product_gives_the_own_factors():
    own_a, own_b = normal(4, 12), normal(9, 4)
    u, s, vh = torch.linalg.svd(own_b @ own_a, full_matrices=False)
    a, b = nearest_gauge(u[:, :4], s[:4], vh[:4].T, own_a)
    assert torch.allclose(a, own_a, atol=1e-11)
    assert torch.allclose(b, own_b, atol=1e-11)


def test_a_direction_that_a_lacks_is_given_a_small_one():
    own = normal(4, 12)
    own[3] = own[2]
    u, s, v = product()
    a, b = nearest_gauge(u, s, v, own)
    assert torch.allclose(b @ a, u @ torch.diag(s) @ v.T, atol=1e-8)
    sizes = torch.linalg.svdvals(a)
    assert float(sizes[-1] / sizes[0]) == pytest.approx(1e-6, rel=1e-3)


def test_many_clients_at_a_time_get_what_each_would_get():
    a, b, sizes, scales = make_cohort([2, 3, 3, 4])
    dense = torch.einsum("k,koi->oi", scales, b @ a)[None] / 4
    new_a, new_b = receive(leading_of_dense(dense, 4), torch.zeros(4, dtype=torch.long),
                           Layer(a, b, sizes, scales))  # fmt: skip
    u, s, vh = torch.linalg.svd(dense[0], full_matrices=False)
    for k, rank in enumerate(sizes.tolist()):
        one_a, one_b = nearest_gauge(u[:, :rank], s[:rank], vh[:rank].T, a[k, :rank])
        assert torch.allclose(new_a[k, :rank], one_a, atol=1e-9)
        assert torch.allclose(scales[k] * new_b[k, :, :rank], one_b, atol=1e-9)


def factors_after(rounds, gauge):
    """Sizes of A and B once clients of unequal ranks changed and took the mean so many times."""
    ranks, base = [2, 4, 12], normal(12, 32) / 32**0.5
    a, b = [base[:r].clone() for r in ranks], [0.1 * normal(32, r) for r in ranks]
    for _ in range(rounds):
        a = [x + 0.03 * normal(*x.shape) for x in a]
        b = [x + 0.03 * normal(*x.shape) for x in b]
        mean = sum(y @ x / 3 for x, y in zip(a, b, strict=True))
        u, s, vh = torch.linalg.svd(mean)
        both = [gauge(u[:, :r], s[:r], vh[:r].T, x) for x, r in zip(a, ranks, strict=True)]
        a, b = [list(some) for some in zip(*both, strict=True)]
    return [float(torch.linalg.svdvals(x)[-1]) for x in a], [float(x.norm()) for x in b]


def test_mixing_again_and_again_does_not_move_size_from_a_to_b():
    start, _ = factors_after(0, nearest_gauge)
    least, sizes = factors_after(40, nearest_gauge)
    assert all(after > 0.9 * before for before, after in zip(start, least, strict=True))
    shrunk, grown = factors_after(40, projected)  # the control: nearer, and not the same size
    assert min(shrunk) < 0.4 * min(least)
    assert max(grown) > 1.3 * max(sizes)


def test_a_mixture_of_unequal_ranks_keeps_every_gram_matrix():
    a, b, sizes, scales = make_cohort([2, 3, 4])
    new_a, _ = mix_product(a, b, sizes, scales, torch.full((3, 3), 1 / 3, dtype=torch.float64))
    assert torch.allclose(new_a @ new_a.mT, a @ a.mT, atol=1e-10)
