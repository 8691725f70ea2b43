import numpy as np
import pytest
import torch

from atlas.ops import sketch
from atlas.ops.sketch import count_sketch, pca


def vector(size, seed):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(size))


def test_sketch_is_linear():
    a, b = vector(5000, 0), vector(5000, 1)
    together = count_sketch(2 * a - 3 * b, 256, 7)
    apart = 2 * count_sketch(a, 256, 7) - 3 * count_sketch(b, 256, 7)
    assert torch.allclose(together, apart, rtol=0, atol=1e-11)


def test_sketch_is_one_signed_bucket_per_coordinate():
    size, width = 300, 16
    table = torch.stack([count_sketch(row, width, 3) for row in torch.eye(size).double()])
    assert torch.equal((table != 0).sum(1), torch.ones(size, dtype=torch.int64))
    assert torch.equal(table.abs().sum(1), torch.ones(size, dtype=torch.float64))
    values = vector(size, 5)
    assert torch.allclose(count_sketch(values, width, 3), values @ table, rtol=0, atol=1e-12)


def test_sketch_depends_on_seed_alone_and_not_on_chunks(monkeypatch):
    values = vector(5000, 2).float()
    whole = count_sketch(values, 128, 11)
    assert whole.dtype == torch.float32
    assert torch.equal(whole, count_sketch(values, 128, 11))
    assert not torch.allclose(whole, count_sketch(values, 128, 12))
    monkeypatch.setattr(sketch, "CHUNK", 777)
    assert torch.allclose(whole, count_sketch(values, 128, 11), rtol=0, atol=1e-5)
    assert count_sketch(values, 128, -1).isfinite().all()


@pytest.mark.parametrize("width", [100, 128, 1000])
def test_buckets_and_signs_are_even(width):
    size = 200_000
    ones = count_sketch(torch.ones(size, dtype=torch.float64), width, 0)
    # A bucket holds a sum of about size / width signs: variance size / width, mean zero.
    assert (ones != 0).double().mean() > 0.9
    assert ones.square().mean().item() == pytest.approx(size / width, rel=0.5)
    assert abs(ones.sum().item()) < 4 * size**0.5


def test_inner_products_survive_as_the_variance_bound_says():
    width, seeds = 1024, 200
    a = vector(20_000, 3)
    b = 0.5 * a + vector(20_000, 4)
    truth = float(a @ b)
    found = np.array(
        [float(count_sketch(a, width, s) @ count_sketch(b, width, s)) for s in range(seeds)]
    )
    bound = np.sqrt((float(a @ a) * float(b @ b) + truth**2) / width)
    assert abs(found.mean() - truth) < 4 * bound / np.sqrt(seeds)
    assert found.std() < 1.2 * bound
    assert np.mean(np.abs(found - truth) / truth < 0.2) > 0.95


def test_sketch_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="one vector"):
        count_sketch(torch.ones(2, 2), 4, 0)
    with pytest.raises(ValueError, match="bucket"):
        count_sketch(torch.ones(2), 0, 0)
    assert torch.equal(count_sketch(torch.ones(0), 4, 0), torch.zeros(4))


@pytest.mark.parametrize(("n", "d", "dims"), [(9, 40, 64), (9, 40, 3), (30, 5, 64), (30, 5, 2)])
def test_pca_equals_a_covariance_twin(n, d, dims):
    features = np.random.default_rng(n + d).standard_normal((n, d)) + 3
    projected, explained = pca(torch.from_numpy(features), dims)
    kept = min(dims, n - 1, d)
    values, vectors = np.linalg.eigh(np.cov(features.T))
    assert projected.shape == (n, kept)
    assert explained == pytest.approx(values[::-1][:kept].sum() / values.sum(), abs=1e-10)
    for column in range(kept):
        direction = vectors[:, ::-1][:, column]
        direction = direction * np.sign(direction[np.abs(direction).argmax()])
        want = (features - features.mean(0)) @ direction
        assert np.abs(projected[:, column].numpy() - want).max() < 1e-10


def test_pca_keeps_distances_when_it_keeps_everything():
    features = torch.from_numpy(np.random.default_rng(0).standard_normal((9, 500)))
    projected, explained = pca(features, 64)
    assert explained == pytest.approx(1.0, abs=1e-12)
    assert torch.allclose(torch.cdist(projected, projected), torch.cdist(features, features))


def test_pca_of_nothing_to_tell_apart():
    projected, explained = pca(torch.ones(1, 5), 64)
    assert projected.shape == (1, 0)
    assert explained == 1.0
    projected, explained = pca(torch.full((4, 5), 0.1, dtype=torch.float64), 2)
    assert torch.equal(projected, torch.zeros(4, 2, dtype=torch.float64))
    assert explained == 1.0
    pair = pca(torch.tensor([[0.0, 1.0], [0.0, 3.0]]), 64)[0]
    assert pair.flatten().tolist() == pytest.approx([-1.0, 1.0])
    with pytest.raises(ValueError, match="n >= 1"):
        pca(torch.ones(0, 3), 2)
