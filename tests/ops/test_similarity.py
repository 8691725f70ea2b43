"""Similarity of representations against loops and textbook forms in float64."""

import math

import pytest
import torch

from atlas.ops.similarity import centred, gram_triangle, linear_cka, shortened


def features(seed, n, width):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)).double()


def direct_cka(one, two):
    """|Y'X|^2 / (|X'X| |Y'Y|) of centred features: no Gram matrix of texts is made."""
    x, y = one - one.mean(0), two - two.mean(0)
    return float((y.T @ x).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


@pytest.mark.parametrize("n", [2, 5, 64])
@pytest.mark.parametrize("widths", [(3, 3), (7, 2), (40, 96)])
def test_the_cosine_of_triangles_is_linear_cka_whatever_the_widths(n, widths):
    one, two = features(1, n, widths[0]), features(2, n, widths[1])
    triangles = gram_triangle(one), gram_triangle(two)
    assert all(len(t) == n * (n + 1) // 2 for t in triangles)
    assert all(abs(float(t.norm()) - 1) < 1e-12 for t in triangles)
    assert float(triangles[0] @ triangles[1]) == pytest.approx(direct_cka(one, two), abs=1e-12)
    assert linear_cka(one, two) == pytest.approx(direct_cka(one, two), abs=1e-12)


def test_cka_minds_neither_rotation_nor_scale_nor_shift():
    one = features(3, 20, 6)
    turned = torch.linalg.qr(features(4, 9, 9))[0][:6]
    assert linear_cka(one, 5.0 * one @ turned + 3.0) == pytest.approx(1.0, abs=1e-12)
    assert linear_cka(one, features(5, 20, 6)) < 0.8


def test_features_without_differences_are_like_nothing():
    flat = torch.full((6, 4), 0.1, dtype=torch.float64)
    assert not gram_triangle(flat).any()
    assert not centred(flat).any()
    assert linear_cka(flat, features(6, 6, 3)) == 0.0
    with pytest.raises(ValueError, match="n >= 2"):
        gram_triangle(features(1, 1, 3))


def test_vectors_are_shortened_and_never_lengthened():
    values = features(7, 1, 30)[0]
    length = math.sqrt(sum(float(v) ** 2 for v in values))
    cut, before = shortened(values, length / 4)
    assert before == pytest.approx(length)
    assert float(cut.norm()) == pytest.approx(length / 4)
    kept, _ = shortened(values, 2 * length)
    assert torch.equal(kept, values)
