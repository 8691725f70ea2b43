"""Bases of paired features, against dense float64 twins."""

import numpy as np
import pytest
import scipy.linalg
import torch

from atlas.ops.alignment import (
    cca_basis,
    centred,
    drawn_like,
    paired_residual,
    principal_angles,
    principal_directions,
    procrustes_basis,
    relative_size,
    supported_rank,
)


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape))


def features(texts=90, width=24, seed=0):
    """Centred, with a spectrum that falls."""
    spectrum = torch.linspace(3.0, 0.2, width).double()
    return centred(draw(texts, width, seed=seed) * spectrum + 5.0)


def orthonormal(width, count, seed=0):
    return torch.linalg.qr(draw(width, count, seed=seed))[0].mT


def is_orthonormal(rows, close=1e-12):
    return torch.allclose(rows @ rows.mT, torch.eye(len(rows)).double(), atol=close)


def test_principal_directions_are_the_eigenvectors_of_the_covariance():
    x = features()
    found = principal_directions(x, 6)
    values, vectors = np.linalg.eigh((x.T @ x).numpy())
    wanted = vectors[:, ::-1].T[:6]
    assert np.allclose(np.abs(found.numpy() @ wanted.T), np.eye(6), atol=1e-10)
    assert is_orthonormal(found)
    sizes = (x @ found.mT).square().sum(0)
    assert np.allclose(sizes, values[::-1][:6])


def test_signs_do_not_depend_on_how_directions_were_found():
    x = features()
    found = principal_directions(x, 6)
    assert bool((found.gather(1, found.abs().argmax(1, keepdim=True)) > 0).all())
    assert torch.allclose(principal_directions(-x, 6), found, atol=1e-10)
    assert torch.allclose(principal_directions(x.flip(0), 6), found, atol=1e-10)


@pytest.mark.parametrize(("texts", "width", "most"), [(90, 24, 24), (10, 24, 9), (90, 5, 5)])
def test_there_are_no_more_directions_than_texts_or_numbers(texts, width, most):
    x = features(texts, width)
    assert supported_rank(x) == most
    assert len(principal_directions(x, 99)) == most
    assert supported_rank(torch.zeros(4, 3).double()) == 0


def naive_procrustes(leading, x, target):
    """The best of orthonormal rows by scipy where both sides have as many columns."""
    coordinates = (x @ leading.mT).numpy()
    turn, _ = scipy.linalg.orthogonal_procrustes(coordinates, target.numpy())
    return torch.from_numpy(turn.T) @ leading


def test_procrustes_in_as_many_dimensions_is_scipys():
    x, target = features(), features(width=6, seed=3)
    leading = principal_directions(x, 6)
    assert torch.allclose(
        procrustes_basis(leading, x, target), naive_procrustes(leading, x, target), atol=1e-10
    )


@pytest.mark.parametrize("basis", ["procrustes", "cca"])
@pytest.mark.parametrize("width", [24, 200])
def test_a_turned_copy_is_found(basis, width):
    """The other model says the same in other and more numbers, larger by a factor."""
    x = features()
    rows = principal_directions(x, 5)
    other = 7.0 * x @ orthonormal(width, 24, seed=9)
    leading = principal_directions(other, 20)
    target = x @ rows.mT
    found = (
        procrustes_basis(leading, other, target)
        if basis == "procrustes"
        else cca_basis(leading, other, target, 0.0)
    )
    assert is_orthonormal(found)
    assert paired_residual(other @ found.mT, target) < 1e-10
    assert relative_size(other @ found.mT, target) == pytest.approx(7.0)
    plain = principal_directions(other, 5)
    assert paired_residual(other @ plain.mT, target) > 0.5


def test_procrustes_beats_any_other_basis_it_could_choose():
    x, y = features(), features(width=30, seed=4)
    target = y @ principal_directions(y, 4).mT
    leading = principal_directions(x, 12)
    found = procrustes_basis(leading, x, target)
    best = float(((x @ found.mT) * target).sum())
    for seed in range(50):
        other = orthonormal(12, 4, seed=seed) @ leading
        assert float(((x @ other.mT) * target).sum()) < best
    assert torch.allclose(found @ leading.mT @ leading, found, atol=1e-10), "within their span"


def naive_cca(leading, x, target, ridge):
    here = (x @ leading.mT).numpy()
    there = target.numpy()
    own, theirs = here.T @ here, there.T @ there
    own = own + ridge * np.trace(own) / len(own) * np.eye(len(own))
    theirs = theirs + ridge * np.trace(theirs) / len(theirs) * np.eye(len(theirs))
    root = scipy.linalg.sqrtm
    whiten = np.linalg.inv(root(own).real)
    cross = np.linalg.inv(root(theirs).real) @ there.T @ here @ whiten
    turn = scipy.linalg.polar(cross)[0]
    return scipy.linalg.polar(root(theirs).real @ turn @ whiten)[0] @ leading.numpy()


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 1.0])
def test_cca_is_that_of_matrix_roots(ridge):
    x, y = features(), features(width=30, seed=4)
    y[:, :8] += x[:, :8]
    target = y @ principal_directions(y, 4).mT
    leading = principal_directions(x, 12)
    found = cca_basis(leading, x, target, ridge)
    assert is_orthonormal(found)
    assert np.allclose(found, naive_cca(leading, x, target, ridge), atol=1e-8)


def test_pairing_is_what_aligns():
    x = features(400)
    rows = principal_directions(x, 5)
    other = x @ orthonormal(60, 24, seed=9) + 0.1 * draw(400, 60, seed=5)
    target = x @ rows.mT
    leading = principal_directions(other, 20)
    shuffled = target[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    paired = procrustes_basis(leading, other, target)
    unpaired = procrustes_basis(leading, other, shuffled)
    assert paired_residual(other @ paired.mT, target) < 0.15
    assert paired_residual(other @ unpaired.mT, target) > 1.0


def test_draws_have_the_features_mean_and_covariance():
    x = features() + 3.0
    drawn = drawn_like(x, draw(40000, len(x), seed=8))
    assert torch.allclose(drawn.mean(0), x.mean(0), atol=0.08)
    assert torch.allclose(drawn.T.cov(), x.T.cov(), atol=0.25)
    assert torch.allclose(drawn_like(x, torch.zeros(2, len(x)).double()), x.mean(0).expand(2, -1))


def test_residuals_of_known_pairs():
    y = draw(50, 4)
    assert paired_residual(3 * y, y) < 1e-12
    assert paired_residual(-y, y) == pytest.approx(2.0)
    assert paired_residual(draw(50_000, 4, seed=1), draw(50_000, 4, seed=2)) == pytest.approx(
        2**0.5, abs=0.02
    )
    assert paired_residual(torch.zeros_like(y), y) == pytest.approx(1.0)


def test_angles_are_scipys_and_do_not_change_by_turning():
    one, two = draw(40, 5), draw(40, 5, seed=2)
    wanted = np.sort(np.rad2deg(scipy.linalg.subspace_angles(one.numpy(), two.numpy())))
    assert np.allclose(principal_angles(one, two), wanted)
    assert torch.allclose(
        principal_angles(one @ draw(5, 5, seed=7), two), principal_angles(one, two)
    )
    assert float(principal_angles(one, one @ draw(5, 5, seed=7)).max()) < 1e-5
